"""Runs commands of capsweep, each in a fork of this process, whose imports are paid once.

A line of JSON in (argv, folder, env, limit), one out (status, out, err, seconds). status: that of
the command; None: it ran past the limit and was killed; below 0: a signal ended it. A command that
would train a cell ends with TRAINED instead, but for those that are `allowed`.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

TRAINED, RAISED = 88, 70
MOST_MEMORY = 24 * 2**30  # of addresses, of which torch maps many
MOST_WRITTEN = 256 * 2**20


def serve() -> None:
    """Until the input ends."""
    from capsweep import cli
    from capsweep.config import compose
    from capsweep.report import figures, page  # noqa: F401
    from capsweep.sweep import drive  # noqa: F401
    from capsweep.training import run, size  # noqa: F401

    compose.cell(["experiment=digits"])
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _become(cli.main, asked)
        status = _wait(pid, asked["limit"])
        out, err = (Path(asked["folder"], name).read_bytes() for name in (".out", ".err"))
        told = {"status": status, "seconds": time.monotonic() - began}
        texts = {"out": out.decode("utf-8", "replace"), "err": err.decode("utf-8", "replace")}
        print(json.dumps(told | texts), flush=True)


def _wait(pid: int, limit: float) -> int | None:
    """The exit status, or minus the signal; its whole session is gone afterwards.

    Time in which other processes had the processor does not count.
    """
    began = time.monotonic()
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() - began < limit + min(_queued(pid), 10 * limit):
        time.sleep(0.005)
        ended, status = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
        return None
    return os.waitstatus_to_exitcode(status)


def _queued(pid: int) -> float:
    """Seconds in which a process could have run, and another did."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _become(main, asked: dict) -> None:
    """The command; never returns."""
    os.setsid()
    os.chdir(asked["folder"])
    for number, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_WRITTEN, MOST_WRITTEN))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.makedirs(".tmp", exist_ok=True)
    os.environ.update(asked["env"] | {"TMPDIR": f"{asked['folder']}/.tmp"})
    tempfile.tempdir = None  # what other processes left elsewhere is not for `ledger gc` here
    status = RAISED
    try:
        if not asked.get("allowed"):
            _refuse_work()
        status = main(asked["argv"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _refuse_work() -> None:
    """Bad input is known before a cell is trained. Drawn commands never start Ray."""
    from capsweep.sweep import job
    from capsweep.sweep.executors import local

    def refuse(*_: object, **__: object) -> None:
        os.write(2, b"it would have trained a cell\n")
        os._exit(TRAINED)

    job.run_job = local.execute = refuse


if __name__ == "__main__":
    serve()
