"""A sweep as a job of a cluster: submitted once, found again, followed to its end, stopped."""

import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from capsweep.cluster.client import Jobs, SweepJob, UnreachableError
from capsweep.cluster.driver import name_command, quote_sweep
from capsweep.config import package_files
from capsweep.errors import ConfigError
from capsweep.storage.files import hash_bytes

STOP_SECONDS = 60  # in which a driver ends by itself; then Ray kills it
LOOK_SECONDS = 1.0  # between two looks at a job
NOT_FOUND, NOT_RUNNABLE = 127, 126  # what a shell says of a program


def submit_sweep(
    jobs: Jobs, sweep: Path, words: Sequence[str], python: str | None = None
) -> tuple[SweepJob, bool]:
    """Return the job that runs these words, and whether it is new: one that runs is not doubled.

    sweep: its file, which goes along. words: after `capsweep`. python: of the head; None: that of
    its Ray.
    """
    name = name_command(sweep.stem, words)
    known = [job for job in jobs.list_jobs() if job.name == name]
    for job in known:
        if not job.has_ended:
            return job, False
    # Ray takes no id twice, not even when the first job is over.
    job_id = f"{name}-{max((job.number for job in known), default=0) + 1}"
    # `exec`: the driver takes the shell's place, so that it gets the signal that stops the job.
    command = f"exec {shlex.join([python or jobs.find_python(), '-m', 'capsweep', *words])}"
    try:
        _send_job(jobs, job_id, command, sweep)
    except ConfigError:  # a submitter at the same moment may have been first
        for job in jobs.list_jobs():
            if job.id == job_id:
                return job, False
        raise
    return jobs.read_job(job_id), True


def find_job(jobs: Jobs, text: str) -> SweepJob:
    """Return the job that is named by its id, or by its sweep: that which runs, else the newest.

    Raises ConfigError naming those that there are, also where several of the sweep's run.
    """
    all_jobs = jobs.list_jobs()
    if exact := [job for job in all_jobs if job.id == text]:
        return exact[0]
    sweep = quote_sweep(Path(text).stem if text.endswith(".yaml") else text)
    of_sweep = [job for job in all_jobs if job.sweep == sweep]
    if not of_sweep:
        have = ", ".join(sorted({job.sweep for job in all_jobs})) or "none"
        raise ConfigError(f"SWEEP={text}: no job of {jobs.address} runs or ran it; have {have}")
    running = [job for job in of_sweep if not job.has_ended]
    if len(running) > 1:
        ids = ", ".join(job.id for job in running)
        raise ConfigError(f"SWEEP={text}: several of its jobs run; name one of {ids}")
    return (running or of_sweep)[-1]


def stop_job(jobs: Jobs, job: SweepJob) -> SweepJob:
    """End a job and wait until it has ended: by SIGTERM, which keeps ledger and checkpoints, and by
    SIGKILL if it does not end. Raises ConfigError where it lives on.
    """
    until = time.monotonic() + 2 * STOP_SECONDS
    jobs.stop_job(job.id)
    while not (now := jobs.read_job(job.id)).has_ended:
        if time.monotonic() > until:
            raise ConfigError(f"{job.id} does not end; its cluster's head may be overloaded")
        time.sleep(LOOK_SECONDS)
    return now


def follow_job(
    jobs: Jobs, job: SweepJob, write: Callable[[str], object], say: Callable[[str], object]
) -> SweepJob:
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


def find_obstacle(job: SweepJob) -> str | None:
    """Return what kept a job's driver from an exit status, with the cure; None: it has one."""
    if job.state != "FAILED" or job.status not in (None, NOT_FOUND, NOT_RUNNABLE):
        return None
    if job.status is None:
        why = " ".join(job.message.split())[:500] or "Ray does not say why"
        return f"it ended without an exit status: {why}; the same command goes on"
    program = shlex.split(job.command.removeprefix("exec "))[0]
    return f"the head has no program {program}; set cluster.python to that of its Ray, a path there"


def runs_other_code(job: SweepJob, sweep: Path) -> bool:
    """Whether a job was sent with other code, configuration or sweep file than those here."""
    return job.code not in (None, _hash_code(sweep))


def _hash_code(sweep: Path) -> str:
    """Return a hash of what decides how the cells of a sweep file run."""
    folders = (package_files.PACKAGE, package_files.find_folder("conf"))
    files = [path for folder in folders for path in sorted(folder.rglob("*"))]
    decisive = [path for path in files if path.suffix in (".py", ".yaml")]
    hashes = [(path.name, hash_bytes(path.read_bytes())) for path in (*decisive, sweep)]
    return hash_bytes(repr(hashes).encode())[:12]


def _send_job(jobs: Jobs, job_id: str, command: str, sweep: Path) -> None:
    with package_files.staged_packages_for(jobs.address) as package:
        assert package is not None
        staged = package / "sweeps" / sweep.name  # a sweep file of elsewhere travels along
        if staged.exists() and staged.read_bytes() != sweep.read_bytes():
            raise ConfigError(f"{sweep}: sweeps/ has another file of this name; rename one of them")
        shutil.copyfile(sweep, staged)
        # Ray shows this to all who see the dashboard: it holds no secret, and no places of ours.
        runtime_env = {
            "py_modules": package_files.list_modules(package),
            "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)},
        }
        jobs.submit_job(job_id, command, runtime_env, _hash_code(sweep))
