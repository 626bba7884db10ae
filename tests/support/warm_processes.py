"""Python processes that need not import torch and Lightning: they are forked from one that has.

`run(["-m", "capsweep", ...])` is `subprocess.run([sys.executable, "-m", "capsweep", ...])` without
the seconds of imports. It is for tests of what a process does; how one starts, what it imports, and
what it does with Ray, which is to start from a plain process, is tested with `subprocess` itself.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest.mock import patch

IMPORTED = [
    "torch._dynamo",
    "capsweep.cli",
    "capsweep.training.fit",
    "capsweep.sweep.drive",
]


def run(
    words: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """What `python WORDS` does in the current folder, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("out", "err")]
        environment = dict(os.environ if env is None else env)
        process = _start_server().Process(
            target=_become_program, args=(list(words), environment, os.getcwd(), outputs)
        )
        process.start()
        process.join(timeout)
        has_ended = process.exitcode is not None
        process.kill()
        texts = [path.read_text(errors="replace") for path in outputs if path.exists()]
    if not has_ended:
        raise subprocess.TimeoutExpired(list(words), timeout, "".join(texts))
    return subprocess.CompletedProcess(list(words), process.exitcode or 0, *texts)


@cache
def _start_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with patch.dict(os.environ, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


def _become_program(
    words: list[str], environment: dict[str, str], folder: str, outputs: list[Path]
) -> None:
    """What `python WORDS` would be, its environment, its folder and its outputs."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    option, program, *rest = words
    sys.argv = [option, *rest]
    try:
        if option == "-c":
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
