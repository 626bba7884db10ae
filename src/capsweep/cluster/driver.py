"""Drive a sweep by a process inside a cluster: its command line, its name, its end.

Its job there is submitted once, found again, followed to its end, and stopped.
"""

import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep.config import package_files, places
from capsweep.errors import ConfigError, UnreachableError
from capsweep.storage.files import hash_bytes

if TYPE_CHECKING:  # it imports Ray
    from capsweep.cluster.client import Jobs, SweepJob

CODE = "capsweep_code"  # in a job's metadata
PLACES = ("STORAGE", "DATA_DIR", "LEDGER")
# Words that say where to drive, which `--here` does inside.
OF_HERE = ("CLUSTER", "RAY_ADDRESS", "cluster", "cluster.address", "cluster.jobs", "cluster.submit")
STOP_SECONDS = 60  # in which a driver ends by itself; then Ray kills it
LOOK_SECONDS = 1.0  # between two looks at a job
NOT_FOUND, NOT_RUNNABLE = 127, 126  # what a shell says of a program


def name_command(sweep: str, words: Sequence[str]) -> str:
    """Return `capsweep-SWEEP-CHOICES`, the same for the same words after `capsweep` in any order.

    With the number of the run, `-1` and so on, it is the id of a job, which Ray gives once.
    """
    choices = hash_bytes(json.dumps(sorted(words)).encode())[:8]
    return f"capsweep-{_quote_sweep(sweep)}-{choices}"


def _quote_sweep(sweep: str) -> str:
    """Return the name of a sweep as it stands in an id: a part of a URL and of file names."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", sweep)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """End a sweep at SIGTERM as at Ctrl-C: its trials are stopped, and it says how far it is.

    Ray's jobs inherit SIGINT blocked, and a shell's background jobs ignore it: it is let in.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # To whoever handles SIGINT now: Ray Tune, while it runs.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def make_inner_command(
    sweep: str, words: Sequence[str], config: Mapping[str, Any], staged: bool = True
) -> list[str]:
    """Return the words after `capsweep` by which a process on a cluster drives the same sweep.

    They are as typed, less what is of this machine, with its cluster and with absolute places.

    words: typed behind the sweep. config: of the first cell. staged: a sweep file of elsewhere is
    in the package that travels, by its name; otherwise it is named by its absolute path.
    """
    if sweep.endswith(".yaml"):
        sweep = Path(sweep).stem if staged else os.path.abspath(sweep)
    typed = _without(words, (*OF_HERE, *PLACES))
    there = (config["places"][name] for name in ("storage", "data", "ledger"))
    cluster = f"CLUSTER={config['cluster']['name']}"
    return ["sweep", sweep, "--here", *typed, cluster, *_name_places(*there)]


def with_node_places(words: Sequence[str], config: Mapping[str, Any]) -> list[str] | None:
    """Return the words of a driver on a node, with places as that node sees them (`cluster.node`);
    None where they are the same.
    """
    if not any(config["cluster"]["node"].values()):
        return None
    node = places.on_node(config)
    return [*_without(words, PLACES), *_name_places(node.kept, node.data, node.ledger)]


def _name_places(*places_there: str) -> list[str]:
    return [f"{name}={place}" for name, place in zip(PLACES, places_there, strict=True)]


def _without(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the words that set none of these names, and no key of `places`."""
    named = [(word.partition("=")[0], word) for word in words]
    return [word for name, word in named if name not in names and not name.startswith("places")]


def submit_sweep(
    jobs: "Jobs", sweep: Path, words: Sequence[str], python: str | None = None
) -> "tuple[SweepJob, bool]":
    """Return the job that runs these words, and whether it is new: one that runs is not doubled.

    sweep: its file, which goes along. words: after `capsweep`. python: of the head; None: that of
    its Ray.
    """
    name = name_command(sweep.stem, words)
    known = [job for job in jobs.list_sweeps() if job.name == name]
    for job in known:
        if not job.has_ended:
            return job, False
    # Ray takes no id twice, not even when the first job is over.
    job_id = f"{name}-{max((job.number for job in known), default=0) + 1}"
    # `exec`: the driver takes the shell's place, so that it gets the signal that stops the job.
    command = f"exec {shlex.join([python or jobs.find_python(), '-m', 'capsweep', *words])}"
    _send_job(jobs, job_id, command, sweep)
    return jobs.read_job(job_id), True


def _send_job(jobs: "Jobs", job_id: str, command: str, sweep: Path) -> None:
    with package_files.staged_packages_for(jobs.address) as package:
        assert package is not None
        staged = package / "sweeps" / sweep.name  # a sweep file of elsewhere travels along
        if staged.exists() and staged.read_bytes() != sweep.read_bytes():
            raise ConfigError(f"{sweep}: sweeps/ has another file of this name; rename one of them")
        shutil.copyfile(sweep, staged)
        # Ray shows this to all who see the dashboard: it holds no secret, and no places of ours.
        runtime_env = {
            "py_modules": [str(package), str(package.with_name(package_files.JOBS))],
            "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)},
        }
        jobs.submit_job(
            entrypoint=command,
            submission_id=job_id,
            runtime_env=runtime_env,
            metadata={CODE: _hash_code(sweep)},
        )


def runs_other_code(job: "SweepJob", sweep: Path) -> bool:
    """Whether a job was sent with other code, configuration or sweep file than those here; false
    where it came with an image.
    """
    return (job.details.metadata or {}).get(CODE) not in (None, _hash_code(sweep))


def _hash_code(sweep: Path) -> str:
    """Return a hash of what decides how the cells of a sweep file run."""
    folders = (package_files.PACKAGE, package_files.find_folder("conf"))
    files = [path for folder in folders for path in sorted(folder.rglob("*"))]
    decisive = [path for path in files if path.suffix in (".py", ".yaml")]
    hashes = [(path.name, hash_bytes(path.read_bytes())) for path in (*decisive, sweep)]
    return hash_bytes(repr(hashes).encode())[:12]


def find_job(jobs: "Jobs", text: str) -> "SweepJob":
    """Return the job that is named by its id, or by its sweep: that which runs, else the newest.

    Raises ConfigError naming those that there are, also where several of the sweep's run.
    """
    all_jobs = jobs.list_sweeps()
    if exact := [job for job in all_jobs if job.id == text]:
        return exact[0]
    sweep = _quote_sweep(Path(text).stem if text.endswith(".yaml") else text)
    of_sweep = [job for job in all_jobs if job.sweep == sweep]
    if not of_sweep:
        have = ", ".join(sorted({job.sweep for job in all_jobs})) or "none"
        raise ConfigError(f"SWEEP={text}: no job of {jobs.address} runs or ran it; have {have}")
    running = [job for job in of_sweep if not job.has_ended]
    if len(running) > 1:
        ids = ", ".join(job.id for job in running)
        raise ConfigError(f"SWEEP={text}: several of its jobs run; name one of {ids}")
    return (running or of_sweep)[-1]


def stop_job(jobs: "Jobs", job: "SweepJob") -> "SweepJob":
    """End a job and wait until it has ended: by SIGTERM, which keeps ledger and checkpoints, and by
    SIGKILL if it does not end.
    """
    jobs.stop_job(job.id)
    while not (now := jobs.read_job(job.id)).has_ended:
        time.sleep(LOOK_SECONDS)
    return now


def follow_job(
    jobs: "Jobs", job: "SweepJob", write: Callable[[str], object], say: Callable[[str], object]
) -> "SweepJob":
    """Print all that a job prints, over connections that come and go; returns it ended.

    write: takes text as it was printed. say: takes a line of ours. Ctrl-C leaves the job running.
    """
    printed, is_lost = 0, False
    while True:
        try:
            now, log = jobs.read_job(job.id), jobs.read_log(job.id)
        except UnreachableError as error:
            if not is_lost:
                say(f"{error}; the sweep goes on there, and its lines when it answers again")
            is_lost = True
        else:
            is_lost = False
            write(log[printed:])
            printed = max(printed, len(log))
            if now.has_ended:
                return now
        time.sleep(LOOK_SECONDS)


def find_obstacle(job: "SweepJob") -> str | None:
    """Return what kept a job's driver from an exit status, with the cure; None: it has one."""
    details, status = job.details, job.details.driver_exit_code
    if details.status != "FAILED" or status not in (None, NOT_FOUND, NOT_RUNNABLE):
        return None
    if status is None:
        why = " ".join((details.message or "").split())[:500] or "Ray does not say why"
        return f"it ended without an exit status: {why}; run the same command again to continue"
    program = shlex.split(details.entrypoint.removeprefix("exec "))[0]
    return f"the head has no program {program}; set cluster.python to that of its Ray, a path there"
