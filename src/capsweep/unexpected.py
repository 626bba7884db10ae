"""The outermost handler of exceptions: one line for the user, the traceback in a file."""

import os
import sys
import tempfile
import traceback

LONGEST = 300  # characters of what an exception says

# Exit statuses: a fault of capsweep (EX_SOFTWARE); a disk or the reader of a pipe (EX_IOERR).
UNEXPECTED, REFUSED = 70, 74


def report(error: Exception) -> int:
    """Print one line, keep the traceback in a file, and return the exit status.

    Nothing is printed where the reader of the output closed the pipe, as `head` does.
    """
    if isinstance(error, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes out what is left when it ends
    if isinstance(error, BrokenPipeError):
        return REFUSED
    said = " ".join(str(error).split())[:LONGEST]
    line = f"error: unexpected {type(error).__name__}: {said or 'it says nothing'}"
    trace = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="capsweep-error-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            file.write(trace)
        line += f"; the traceback is in {file.name}"
    except OSError:  # no temporary folder can be written
        line += f"\n{trace}"
    print(line, file=sys.stderr)
    return REFUSED if isinstance(error, OSError) else UNEXPECTED


def flush_output() -> None:
    """Flush standard output. Raises OSError where it cannot be written."""
    if sys.stdout is not None:
        sys.stdout.flush()
