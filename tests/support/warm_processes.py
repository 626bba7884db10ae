"""Python processes that need not import torch and Lightning: they are forked from one that has.

`run(["-m", "capsweep", ...])` is `subprocess.run([sys.executable, "-m", "capsweep", ...])` without
the seconds of imports. It is for tests of what a process does; how one starts, what it imports, and
what it does with Ray, which is to start from a plain process, is tested with `subprocess` itself.
"""

import atexit
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

IMPORTED = (
    "torch._dynamo",
    "capsweep.cli",
    "capsweep.training.run",
    "capsweep.sweep.drive",
    "capsweep.sweep.executors",
)
SUPPORT = Path(__file__).parent


def run(
    words: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """What `python WORDS` does in the current folder, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "words": list(words),
            "environment": dict(os.environ if env is None else env),
            "cwd": os.getcwd(),
            "folder": folder,
        }
        server = _server()
        assert server.stdin is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        status = _wait(Path(folder), words, timeout)
        said = [(Path(folder) / name).read_text(errors="replace") for name in ("out", "err")]
    return subprocess.CompletedProcess(list(words), status, *said)


def _wait(folder: Path, words: Sequence[str], timeout: float) -> int:
    until = time.monotonic() + timeout
    while not (folder / "status").exists():
        if time.monotonic() > until:
            with suppress(OSError, ValueError):
                os.kill(int((folder / "pid").read_text()), 9)
            said = "".join((folder / name).read_text() for name in ("out", "err"))
            raise subprocess.TimeoutExpired(list(words), timeout, said)
        time.sleep(0.01)
    return int((folder / "status").read_text())


@cache
def _server() -> subprocess.Popen[str]:
    program = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import warm_processes as warm"
    server = subprocess.Popen(
        [sys.executable, "-c", f"{program}; warm.serve()"],
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.kill()
    server.wait()


def serve() -> None:
    """Fork a process for every line of the standard input."""
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            _watch(json.loads(line))
            return


def _watch(asked: Mapping[str, Any]) -> None:
    """In a child: fork what was asked for, and write down its id and how it ends."""
    folder = Path(asked["folder"])
    pid = os.fork()
    if pid == 0:
        _become(asked)
        return
    _write(folder / "pid", pid)
    _write(folder / "status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _write(path: Path, number: int) -> None:
    path.with_suffix(".new").write_text(str(number))
    path.with_suffix(".new").rename(path)


def _become(asked: Mapping[str, Any]) -> None:
    """What `python WORDS` would be, its environment, its folder and its outputs."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    for number, name in ((1, "out"), (2, "err")):
        opened = os.open(Path(asked["folder"]) / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    kind, what, *rest = asked["words"]
    sys.argv = [kind, *rest]
    if kind == "-c":
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)
