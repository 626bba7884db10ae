"""The outermost net: what nobody foresaw is one line for a person, and a file for a report."""

import os
import sys
import tempfile
import traceback

LONGEST = 300  # characters of what an exception says

# Exit statuses: a fault of ours (EX_SOFTWARE); a disk or a reader refuses (EX_IOERR).
UNEXPECTED, REFUSED = 70, 74


def tell(error: Exception) -> int:
    """Print one line, keep the traceback in a file, and return the exit status.

    Nothing is printed where the reader of the output has left, as `head` does.
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
    except OSError:  # no folder takes it
        line += f"\n{trace}"
    print(line, file=sys.stderr)
    return REFUSED if isinstance(error, OSError) else UNEXPECTED


def flush_output() -> None:
    """Write out what print() holds back. Raises OSError where nobody takes it."""
    if sys.stdout is not None:
        sys.stdout.flush()
