"""The parts of `capsweep gpu-proof`: their commands, how long each may take, what is kept of it.

Each part is a process of its own: it ends alone where it fails or hangs, and this one, which
imports no torch, takes nothing of the GPU.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from capsweep.cli.gpu_proof_table import (
    CAPSWEEP,
    make_export_command,
    make_sweep_command,
    read_export,
    read_table,
)
from capsweep.config import package_files
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger

DONE, FAILED, UNFINISHED, OUT_OF_TIME = "done", "failed", "unfinished", "out of time"
SKIPPED = "skipped"
BENCH_SECONDS = {"routing": 120.0, "step": 280.0, "data": 50.0, "em": 60.0, "sharing": 100.0}
# Linux kills the command with the process that started it, which would leave it on the GPU: 1 is
# PR_SET_PDEATHSIG, 9 SIGKILL.
ENDS_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
GRACE = 10.0  # seconds to write down what is known, for a part whose time is over
LAST_LINES, LAST_CHARACTERS = 12, 1500  # of an output, as the cause of a failure
QUICK_FACTOR = 3  # of the bounds of benchmarks: a rehearsal may share a slow processor
RESERVED = 40.0  # seconds that all other parts leave, for the export
# Of its bound, what a part is started with: the table, whose size is for ever, when it begins; when
# it goes on; another part.
TO_BEGIN, TO_GO_ON, TO_START = 0.9, 1 / 3, 2 / 3
TESTS = ("model/routing/test_parity.py", "data/test_pairs.py", "data/test_randomness.py")


@dataclass(frozen=True)
class Part:
    """One thing that needs a GPU.

    command: what is run, by the seconds that it is given, bound at most; nothing where there is
    nothing to do yet. result: a file that it writes. read: what is kept of its output and that
    file; raises OSError, ValueError or SyntaxError where nothing can be. statuses: what exit
    statuses mean, others are failures. is_repeated: every call runs it. takes_rest: it is given all
    the time that is left.
    """

    name: str
    command: Callable[[float], Sequence[str]]
    bound: float
    read: Callable[[str, Path], dict[str, Any]]
    result: Path = Path(os.devnull)
    statuses: Mapping[int, str] = field(default_factory=lambda: {0: DONE})
    is_repeated: bool = False
    takes_rest: bool = False


def list_parts(
    folder: Path, export: Path, get_table: Callable[[], list[str]], ledger: Ledger, is_quick: bool
) -> list[Part]:
    """All of them, most important first. folder: of what benchmarks and tests write. export: the
    file of the table's cells in the ledger. get_table: the words of its sweep, none while its size
    is not chosen. is_quick: only to see that they run.
    """
    tests, doctor = folder / "tests.xml", [*CAPSWEEP, "doctor"]
    return [
        # Its status is 1 where W&B is absent, which no part needs.
        Part("doctor", lambda _: doctor, 40, read_output, statuses={0: DONE, 1: DONE}),
        _make_bench("parity", 180, folder, is_quick),
        Part("tests", lambda _: make_tests(tests, is_quick), 180, read_tests, tests),
        *(_make_bench(name, bound, folder, is_quick) for name, bound in BENCH_SECONDS.items()),
        Part(
            "table",
            lambda seconds: make_sweep_command(get_table(), seconds),
            420,
            read_table,
            statuses={0: DONE, 3: UNFINISHED},
            takes_rest=True,
        ),
        Part(
            "export",
            lambda _: make_export_command(export, get_table(), ledger),
            40,
            read_export,
            export,
            is_repeated=True,
        ),
    ]


def _make_bench(name: str, bound: float, folder: Path, is_quick: bool) -> Part:
    """Its status is 1 where a bar is missed, or where it wrote nothing."""
    result = folder / "bench" / f"{name}{'-quick' if is_quick else ''}.json"
    words = [*CAPSWEEP, "bench", name, "--storage", str(folder)]
    if is_quick:
        words, bound = [*words, "--quick"], QUICK_FACTOR * bound
    return Part(name, lambda _: words, bound, read_json, result, {0: DONE, 1: DONE})


def make_tests(result: Path, is_quick: bool) -> list[str]:
    """pytest of the tests that need a GPU, also where plugins of its configuration are absent."""
    root = package_files.CHECKOUT
    files = [str(root / "tests" / name) for name in (TESTS[:1] if is_quick else TESTS)]
    options = ["-o", "addopts=--import-mode=importlib", "-W", "ignore::pytest.PytestConfigWarning"]
    options += ["-p", "no:cacheprovider", "-q", "-rfE", "--junitxml", str(result)]
    options += ["-k", "two_runs and cpu" if is_quick else "cuda or gpu"]
    # Products of matrices have a fixed order, as the tests ask for, only with such a workspace.
    python = ["env", "CUBLAS_WORKSPACE_CONFIG=:4096:8", sys.executable]
    return [*python, "-m", "pytest", "-c", str(root / "pyproject.toml"), *options, *files]


def read_output(output: str, _: Path) -> dict[str, Any]:
    """What was printed."""
    return {"text": output}


def read_json(_: str, result: Path) -> dict[str, Any]:
    """What a benchmark wrote."""
    return json.loads(result.read_bytes())


def read_tests(_: str, result: Path) -> dict[str, Any]:
    """Counts, and the names of tests that failed. Raises UserError where none passed."""
    # One that was interrupted has no name.
    cases = [each for each in ElementTree.parse(result).iter("testcase") if each.get("name")]
    failed = [each for each in cases if {"failure", "error"} & {child.tag for child in each}]
    skipped = [each for each in cases if each.find("skipped") is not None]
    passed = len(cases) - len(failed) - len(skipped)
    if not passed:
        raise UserError(f"no test passed: {len(failed)} failed, {len(skipped)} were skipped")
    names = [f"{each.get('classname')}::{each.get('name')}" for each in failed]
    return {"passed": passed, "failed": len(failed), "skipped": len(skipped), "failures": names}


def choose_bound(part: Part, left: float, has_begun: bool = False) -> float | None:
    """The seconds that a part is given; None: too few are left. has_begun: the table."""
    free = left if part.is_repeated else left - RESERVED
    given = free if part.takes_rest else min(part.bound, free)
    least = (TO_GO_ON if has_begun else TO_BEGIN) if part.takes_rest else TO_START
    return given if given >= least * part.bound else None


def run_part(part: Part, bound: float, log: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a part for at most so many seconds; how it ended, and what is kept of it."""
    if part.result.is_file():
        part.result.unlink()  # an older one is none of this run
    if not (words := part.command(bound)):
        known = {"status": SKIPPED, "cause": "there is nothing to do yet", "seconds": 0.0}
        return known | {"bound": bound, "content": {}}
    started = time.monotonic()
    exit_status = run_command(words, bound, log, environment)
    seconds, output = time.monotonic() - started, log.read_text(encoding="utf-8", errors="replace")
    content, fault = {}, ""
    try:
        content = part.read(output, part.result)
    except (OSError, ValueError, SyntaxError) as error:
        fault = str(error)
    status = OUT_OF_TIME if exit_status is None else part.statuses.get(exit_status, FAILED)
    if status == DONE and fault:
        status = FAILED
    if exit_status is None:
        fault = f"ended after {bound:.0f} s"
    last = "\n".join(output.splitlines()[-LAST_LINES:])[-LAST_CHARACTERS:]
    cause = f"{fault}\n{last}".strip() if status in (FAILED, OUT_OF_TIME) else None
    known = {"status": status, "cause": cause, "seconds": seconds, "bound": bound}
    return known | {"content": content}


def run_command(
    words: Sequence[str], bound: float, log: Path, environment: Mapping[str, str]
) -> int | None:
    """The exit status of a command; None where it was ended after so many seconds, with all that it
    started. log: of what it prints.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", ENDS_WITH_PARENT, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        return process.wait(bound)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
