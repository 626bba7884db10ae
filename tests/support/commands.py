"""`capsweep` in a process of its own, as a person or a script starts it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Process = subprocess.Popen[str]


def start(
    *words: str,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    program: Sequence[str] = ("-m", "capsweep"),
) -> Process:
    """`capsweep WORDS` in a session of its own; both outputs are one. program: for Python."""
    return subprocess.Popen(
        [sys.executable, *program, *words],
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A background job, as a test run may be, hands down an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def run(
    words: Sequence[str], env: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What `python WORDS` does, to its end."""
    command = [sys.executable, *words]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=240)


def read_to_end(process: Process, status: int = 0, seconds: float = 3600) -> str:
    """Return what a process printed until it ended with this status.

    seconds: how long it may take; without it, the timeout of the test comes first.
    """
    try:
        output, _ = process.communicate(timeout=seconds)
    except BaseException:  # the timeout of a test, too: no process outlives its test
        os.killpg(process.pid, signal.SIGKILL)
        print(process.communicate()[0])
        raise
    assert process.returncode == status, output
    return output


def read_to(process: Process, text: str) -> None:
    """Read what a process prints, to the first line that has a text."""
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return
    raise AssertionError(f"{text!r} is not in:\n{''.join(lines)}")
