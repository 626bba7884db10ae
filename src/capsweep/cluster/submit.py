"""A sweep as a job of a cluster: submitted once, found again, stopped."""

import hashlib
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from capsweep.cluster import job_names
from capsweep.cluster.client import Jobs, SweepJob, TakenError
from capsweep.config import package_files
from capsweep.errors import ConfigError

STOP_SECONDS = 60  # in which a driver ends by itself; then Ray kills it
LOOK_SECONDS = 0.5
DECIDING = (".py", ".yaml")  # not the answers that stand beside sweeps
TRIES = 5  # submitters of one command at one moment


def submit(
    jobs: Jobs, sweep: Path, words: Sequence[str], python: str = "python"
) -> tuple[SweepJob, bool]:
    """The job that runs these words, and whether it is new: one that runs already is not doubled.

    sweep: its file, which goes along. words: after `capsweep`. python: of the head.
    """
    name = job_names.of(sweep.stem, words)
    # `exec`: the driver takes the shell's place, so that it hears the signal that stops the job.
    command = f"exec {shlex.join([python, '-m', 'capsweep', *words])}"
    for _ in range(TRIES):
        known = [job for job in jobs.all() if job.name.is_of(name)]
        for job in known:
            if not job.has_ended:
                return job, False
        free = job_names.next_after(name, (job.name for job in known))
        try:
            _send(jobs, free, command, sweep)
        except TakenError:
            continue  # the other's job is the one to attach to
        return jobs.of(str(free)), True
    raise ConfigError(f"{jobs.address}: {name.sweep} is submitted by several at once; try again")


def find(jobs: Jobs, text: str) -> SweepJob:
    """The job that is named by its id, or by its sweep: that which runs, else the newest.

    Raises ConfigError naming those that there are.
    """
    every = jobs.all()
    if exact := [job for job in every if job.id == text]:
        return exact[0]
    wanted = job_names.of_sweep(Path(text).stem if text.endswith(".yaml") else text)
    found = [job for job in every if job.name.sweep == wanted]
    if not found:
        have = ", ".join(sorted({job.name.sweep for job in every})) or "none"
        raise ConfigError(f"SWEEP={text}: no job of {jobs.address} runs or ran it; have {have}")
    running = [job for job in found if not job.has_ended]
    if len(running) > 1:
        ids = ", ".join(job.id for job in running)
        raise ConfigError(f"SWEEP={text}: several of its jobs run; name one of {ids}")
    return (running or found)[-1]


def stop(jobs: Jobs, job: SweepJob) -> SweepJob:
    """End a job and wait until it has ended: by SIGTERM, which keeps ledger and checkpoints, and
    where that is not heard by SIGKILL. Raises ConfigError when it lives even then.
    """
    until = time.monotonic() + 2 * STOP_SECONDS
    jobs.stop(job.id)
    while not (now := jobs.of(job.id)).has_ended:
        if time.monotonic() > until:
            raise ConfigError(f"{job.id} does not end; its cluster's head may be overloaded")
        time.sleep(LOOK_SECONDS)
    return now


def code_here() -> str:
    """What tells code and configuration that would be sent from here from others."""
    with tempfile.TemporaryDirectory(prefix="capsweep-") as folder:
        return _code_of(package_files.stage_packages(Path(folder)))


def _code_of(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in DECIDING:
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _send(jobs: Jobs, name: job_names.Name, command: str, sweep: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="capsweep-") as folder:
        package = package_files.stage_packages(Path(folder))
        code = _code_of(package)
        _add(sweep, package / "sweeps")
        # Ray shows this to all who see the dashboard: it holds no secret, and no places of ours.
        jobs.submit(
            name,
            command,
            {
                "py_modules": package_files.list_modules(package),
                "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)},
            },
            code,
        )


def _add(sweep: Path, folder: Path) -> None:
    """A sweep file of elsewhere travels in the package, by its name."""
    staged = folder / sweep.name
    if not staged.exists():
        shutil.copyfile(sweep, staged)
    elif staged.read_bytes() != sweep.read_bytes():
        raise ConfigError(f"{sweep}: sweeps/ has another file of this name; rename one of them")
