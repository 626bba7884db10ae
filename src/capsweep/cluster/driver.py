"""The driver of a sweep on a cluster: how the driver is named, submitted, followed and stopped.

A driver is a process that runs `capsweep sweep` on the cluster, as a job of Ray. The job is
submitted once. Later commands find this job, follow it to the end, or stop it.
"""

import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep.config import code_identity, package_files, places
from capsweep.config.words import BY_NAME, list_words
from capsweep.errors import ConfigError, UnreachableError
from capsweep.storage.files import hash_bytes

if TYPE_CHECKING:  # client imports Ray
    from capsweep.cluster.client import Jobs, SweepJob

CODE = "capsweep_code"  # key in the metadata of a job, for a hash of the job's code
PLACES = {"STORAGE": "storage", "DATA_DIR": "data", "LEDGER": "ledger"}  # words: keys of `places`
# Words that say where the driver runs. On the cluster `--here` replaces them.
DRIVER = ("CLUSTER", "RAY_ADDRESS", "cluster", "cluster.address", "cluster.jobs", "cluster.submit")
STOP_SECONDS = 60  # a driver that has not ended after this time is killed by Ray
LOOK_SECONDS = 1.0  # between two checks of a job
NOT_FOUND, NOT_RUNNABLE = 127, 126  # exit statuses of a shell that fails to run a program


def name_command(sweep: str, words: Sequence[str]) -> str:
    """Return the name of a command, in the form `capsweep-SWEEP-HASH`.

    The id of a job is this name and the number of the run (`-1`, `-2`), because Ray accepts each id
    only once.

    Args:
        sweep: Name of the sweep.
        words: Words of the command after `capsweep`. HASH is a hash of the sorted words.
    """
    choices = hash_bytes(json.dumps(sorted(words)).encode())[:8]
    return f"capsweep-{_quote_sweep(sweep)}-{choices}"


def _quote_sweep(sweep: str) -> str:
    """Return the name of a sweep, with `-` in place of characters that a URL cannot have."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", sweep)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM inside the block like Ctrl-C: trials stop, and a sweep prints its progress.

    SIGINT is enabled first, because Ray starts jobs with SIGINT blocked, and shells start
    background processes with SIGINT ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # SIGTERM calls the handler that SIGINT has when SIGTERM arrives, such as that of Ray Tune.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def make_inner_command(
    sweep: str, words: Sequence[str], config: Mapping[str, Any], staged: bool = True
) -> list[str]:
    """Return the words of the command that runs, on the cluster, the sweep that the user typed.

    Words that choose a cluster, or that set the folder or URL of storage, data or ledger, are left
    out. Instead, `--here`, the name of the cluster, and the folders or URLs in `config` are added.

    Args:
        sweep: Name or file of the sweep.
        words: Words that the user typed after the sweep.
        config: Configuration of the first cell.
        staged: Whether the sweep file is sent to the cluster with our package. If so, the command
            has the name of the sweep. Otherwise, it has the absolute path of the sweep file.
    """
    if sweep.endswith(".yaml"):
        sweep = Path(sweep).stem if staged else os.path.abspath(sweep)
    there = _replace_places(words, DRIVER, config["places"])
    return ["sweep", sweep, "--here", f"CLUSTER={config['cluster']['name']}", *there]


def make_report_command(sweep: str, words: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """Return the words of the command that writes the page of a sweep while the sweep runs here.

    Args:
        sweep: Name or file of the sweep.
        words: Words of the command that runs the sweep. Words that only a run takes are left out.
        config: Configuration of the first cell.
    """
    only_run = BY_NAME.keys() - {word.name for word in list_words("report")}
    typed = _replace_places(words, only_run, config["places"])
    return ["report", sweep, *typed, "--live"]


def use_node_places(words: Sequence[str], config: Mapping[str, Any]) -> list[str] | None:
    """Replace the places in the words of a command with the places of the compute nodes.

    Places are the folders or URLs of storage, data and ledger. `cluster.node` sets the places of
    the compute nodes.

    Args:
        words: Words of the command.
        config: Configuration of the first cell.

    Returns:
        The new words; None if `cluster.node` sets no places.

    Raises:
        ConfigError: A path of `cluster.node` is not absolute on the node; the error names the key.
    """
    if not any(config["cluster"]["node"].values()):
        return None
    node = places.resolve_on_node(config)
    there = {"storage": node.shared, "data": node.data, "ledger": node.ledger}
    return _replace_places(words, (), there)


def _replace_places(
    words: Sequence[str], left_out: Iterable[str], there: Mapping[str, str]
) -> list[str]:
    """Return the words without those of `left_out`, and with the places `there`.

    Args:
        words: Words of a command.
        left_out: Names of words and keys that are left out.
        there: The storage, the data and the ledger, which replace all places in `words`.
    """
    named = [(word.partition("=")[0], word) for word in words]
    dropped = {*left_out, *PLACES}
    kept = [word for name, word in named if name not in dropped and not name.startswith("places")]
    return [*kept, *(f"{name}={there[key]}" for name, key in PLACES.items())]


def submit_sweep(
    jobs: "Jobs", sweep: Path, words: Sequence[str], python: str | None = None
) -> "tuple[SweepJob, bool]":
    """Submit a job that runs `capsweep WORDS`, unless a job with the same words is running.

    Args:
        jobs: Client of the cluster.
        sweep: File of the sweep. The file is sent with the job.
        words: Words of the command after `capsweep`.
        python: Path of the Python to use on the head node; None: the Python that runs Ray's workers
            there.

    Returns:
        The job, and whether this call has submitted it.

    Raises:
        ConfigError: Another file in sweeps/ has the name of the sweep file.
    """
    name = name_command(sweep.stem, words)
    known = [job for job in jobs.list_sweeps() if job.name == name]
    for job in known:
        if not job.has_ended:
            return job, False
    # Ray refuses the id of an earlier job, even if that job has ended.
    job_id = f"{name}-{max((job.number for job in known), default=0) + 1}"
    # `exec` replaces the shell by the driver. So the driver gets the signal that stops the job.
    command = f"exec {shlex.join([python or jobs.find_python(), '-m', 'capsweep', *words])}"
    _send_job(jobs, job_id, command, sweep)
    return jobs.read_job(job_id), True


def _send_job(jobs: "Jobs", job_id: str, command: str, sweep: Path) -> None:
    """Submit a job with our package and the sweep file.

    Raises:
        ConfigError: Another file in sweeps/ has the name of the sweep file.
    """
    with package_files.staged_packages_for(jobs.address) as package:
        assert package is not None
        staged = package / "sweeps" / sweep.name  # also for a file from another folder
        if staged.exists() and staged.read_bytes() != sweep.read_bytes():
            raise ConfigError(f"{sweep}: sweeps/ has another file of this name; rename one of them")
        shutil.copyfile(sweep, staged)
        # The dashboard shows these values to all users: no secrets and no local paths here.
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
    """Return whether the code, configuration or sweep file of a job differs from ours.

    The result is False if the job's metadata has no hash of the code. Then the code came with a
    container image.
    """
    return (job.details.metadata or {}).get(CODE) not in (None, _hash_code(sweep))


def _hash_code(sweep: Path) -> str:
    """Return a hash of the package, the configuration and the sweep file."""
    settings = sorted(package_files.find_folder("conf").rglob("*.yaml"))
    hashes = [hash_bytes(path.read_bytes()) for path in (*settings, sweep)]
    return hash_bytes(f"{code_identity.hash_package()} {hashes}".encode())[:12]


def find_job(jobs: "Jobs", text: str) -> "SweepJob":
    """Return the job that the user has named by the id of the job or by the sweep.

    If `text` is a sweep, the running job of this sweep is returned. If no job of the sweep is
    running, the newest job of the sweep is returned.

    Args:
        jobs: Client of the cluster.
        text: Id of a job, name of a sweep, or file of a sweep.

    Raises:
        ConfigError: There is no such job, and the error lists the sweeps that have jobs. Or several
            jobs of the sweep are running, and the error lists these jobs.
    """
    all_jobs = jobs.list_sweeps()
    if exact := [job for job in all_jobs if job.id == text]:
        return exact[0]
    sweep = _quote_sweep(Path(text).stem if text.endswith(".yaml") else text)
    of_sweep = [job for job in all_jobs if job.sweep == sweep]
    if not of_sweep:
        have = ", ".join(sorted({job.sweep for job in all_jobs})) or "none"
        raise ConfigError(f"SWEEP={text}: no job of this sweep at {jobs.address}; have {have}")
    running = [job for job in of_sweep if not job.has_ended]
    if len(running) > 1:
        ids = ", ".join(job.id for job in running)
        raise ConfigError(f"SWEEP={text}: several of its jobs are running; name one of {ids}")
    return (running or of_sweep)[-1]


def stop_job(jobs: "Jobs", job: "SweepJob") -> "SweepJob":
    """Stop a job, wait until the job has ended, and return the job in its last state.

    First, Ray sends SIGTERM. The job then keeps its ledger and checkpoints. If the job has not
    ended after STOP_SECONDS, Ray sends SIGKILL.
    """
    jobs.stop_job(job.id)
    while not (now := jobs.read_job(job.id)).has_ended:
        time.sleep(LOOK_SECONDS)
    return now


def follow_job(
    jobs: "Jobs", job: "SweepJob", write: Callable[[str], object], say: Callable[[str], object]
) -> "SweepJob":
    """Print the output of a job until the job ends, even if the connection is lost for a while.

    Ctrl-C stops the printing; the job continues on the cluster.

    Args:
        jobs: Client of the cluster.
        job: The job to follow.
        write: Function that writes a part of the job's output.
        say: Function that prints a message about the connection.

    Returns:
        The job in its last state.
    """
    printed, is_lost = 0, False
    while True:
        try:
            now, log = jobs.read_job(job.id), jobs.read_log(job.id)
        except UnreachableError as error:
            if not is_lost:
                say(f"{error}; the sweep continues; its output follows when the server answers")
            is_lost = True
        else:
            is_lost = False
            write(log[printed:])
            printed = max(printed, len(log))
            if now.has_ended:
                return now
        time.sleep(LOOK_SECONDS)


def find_obstacle(job: "SweepJob") -> str | None:
    """Explain why a job failed before its sweep could set an exit status.

    Returns:
        A message with the reason and with what the user can do. None if the job has not failed, or
        if the sweep itself set the exit status.
    """
    details, status = job.details, job.details.driver_exit_code
    if details.status != "FAILED" or status not in (None, NOT_FOUND, NOT_RUNNABLE):
        return None
    if status is None:
        why = " ".join((details.message or "").split())[:500] or "Ray gives no reason"
        return f"it ended without an exit status: {why}; type the same command again to continue"
    program = shlex.split(details.entrypoint.removeprefix("exec "))[0]
    return f"the head has no program {program}; set cluster.python to the path of its Python there"
