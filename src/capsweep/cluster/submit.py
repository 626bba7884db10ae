"""A sweep as a job of a cluster: submitted once, found again, followed to its end, stopped."""

import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from capsweep.cluster.client import (
    JobName,
    Jobs,
    SweepJob,
    TakenError,
    UnreachableError,
    quote_sweep,
)
from capsweep.config import code_identity, package_files
from capsweep.errors import ConfigError

STOP_SECONDS = 60  # in which a driver ends by itself; then Ray kills it
LOOK_SECONDS = 1.0  # between two looks at a job
PATIENCE = 300.0  # seconds without an answer, after which a watcher gives up, not the sweep
TRIES = 5  # submitters of one command at one moment
NOT_FOUND, NOT_RUNNABLE = 127, 126  # what a shell says of a program


def submit_sweep(
    jobs: Jobs, sweep: Path, words: Sequence[str], python: str = "python"
) -> tuple[SweepJob, bool]:
    """The job that runs these words, and whether it is new: one that runs already is not doubled.

    sweep: its file, which goes along. words: after `capsweep`. python: of the head.
    """
    name = JobName.for_command(sweep.stem, words)
    # `exec`: the driver takes the shell's place, so that it gets the signal that stops the job.
    command = f"exec {shlex.join([python, '-m', 'capsweep', *words])}"
    for _ in range(TRIES):
        known = [job for job in jobs.list_jobs() if job.name.is_same_command(name)]
        for job in known:
            if not job.has_ended:
                return job, False
        # Ray takes no id twice, not even when the first job is over.
        free = replace(name, number=max((job.name.number for job in known), default=0) + 1)
        try:
            _send_job(jobs, free, command, sweep)
        except TakenError:
            continue  # the other's job is the one to attach to
        return jobs.read_job(str(free)), True
    raise ConfigError(f"{jobs.address}: {name.sweep} is submitted by several at once; try again")


def find_job(jobs: Jobs, text: str) -> SweepJob:
    """The job that is named by its id, or by its sweep: that which runs, else the newest.

    Raises ConfigError naming those that there are.
    """
    every = jobs.list_jobs()
    if exact := [job for job in every if job.id == text]:
        return exact[0]
    sweep = quote_sweep(Path(text).stem if text.endswith(".yaml") else text)
    of_sweep = [job for job in every if job.name.sweep == sweep]
    if not of_sweep:
        have = ", ".join(sorted({job.name.sweep for job in every})) or "none"
        raise ConfigError(f"SWEEP={text}: no job of {jobs.address} runs or ran it; have {have}")
    running = [job for job in of_sweep if not job.has_ended]
    if len(running) > 1:
        ids = ", ".join(job.id for job in running)
        raise ConfigError(f"SWEEP={text}: several of its jobs run; name one of {ids}")
    return (running or of_sweep)[-1]


def stop_job(jobs: Jobs, job: SweepJob) -> SweepJob:
    """End a job and wait until it has ended: by SIGTERM, which keeps ledger and checkpoints, and by
    SIGKILL if it does not end. Raises ConfigError when it lives even then.
    """
    until = time.monotonic() + 2 * STOP_SECONDS
    jobs.stop_job(job.id)
    while not (now := jobs.read_job(job.id)).has_ended:
        if time.monotonic() > until:
            raise ConfigError(f"{job.id} does not end; its cluster's head may be overloaded")
        time.sleep(LOOK_SECONDS)
    return now


def follow_job(
    jobs: Jobs,
    job: SweepJob,
    write: Callable[[str], object],
    say: Callable[[str], object],
    patience: float = PATIENCE,
) -> SweepJob:
    """Print all that a job prints, over connections that come and go; returns it ended.

    write: takes text as it was printed. say: takes a line of ours. Raises UnreachableError when
    nobody answers for so long, and KeyboardInterrupt at Ctrl-C: the sweep goes on in both cases.
    """
    printed, lost_at = 0, None
    while True:
        try:
            now = jobs.read_job(job.id)
            log = jobs.read_log(job.id)
        except UnreachableError as error:
            if lost_at is None:
                lost_at = time.monotonic()
                say(
                    f"the connection to {jobs.address} is lost; the sweep goes on there; trying "
                    f"again for {patience:.0f} s"
                )
            elif time.monotonic() - lost_at > patience:
                raise UnreachableError(
                    f"{jobs.address} does not answer; the sweep goes on there: open the tunnel "
                    f"again, then `capsweep attach {job.id}`"
                ) from error
        else:
            if lost_at is not None:
                say("connected again")
            lost_at = None
            write(log[printed:])
            printed = max(printed, len(log))
            if now.has_ended:
                return now
        time.sleep(LOOK_SECONDS)


def check_started(job: SweepJob) -> None:
    """Raise ConfigError, with the cure, for a job whose driver could not start."""
    if job.state != "FAILED":
        return
    if job.status is None:
        text = " ".join(job.message.split())[:500] or "Ray does not say why"
        cure = "`capsweep stop` and the same command start it anew"
        raise ConfigError(f"{job.id}: it did not start: {text}; {cure}")
    if job.status in (NOT_FOUND, NOT_RUNNABLE):
        first, *rest = shlex.split(job.command)
        if first == "exec":  # as `submit_sweep` writes it; a RayJob's is that of its image
            first, cure = rest[0], "set cluster.python to that of its Ray"
        else:
            cure = "set cluster.image to one that contains capsweep"
        raise ConfigError(f"{job.id}: the head has no program {first}; {cure}")


def has_other_code(job: SweepJob) -> bool:
    """Whether a job that runs was sent with other code than that here."""
    return not job.has_ended and job.code not in (None, code_identity.package())


def _send_job(jobs: Jobs, name: JobName, command: str, sweep: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="capsweep-") as folder:
        package = package_files.stage_packages(Path(folder))
        staged = package / "sweeps" / sweep.name  # a sweep file of elsewhere travels along
        if not staged.exists():
            shutil.copyfile(sweep, staged)
        elif staged.read_bytes() != sweep.read_bytes():
            raise ConfigError(f"{sweep}: sweeps/ has another file of this name; rename one of them")
        # Ray shows this to all who see the dashboard: it holds no secret, and no places of ours.
        environment = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}
        runtime_env = {
            "py_modules": package_files.list_modules(package),
            "env_vars": environment,
        }
        jobs.submit_job(name, command, runtime_env, code_identity.package())
