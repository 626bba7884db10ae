"""A sweep as a job array of Slurm, without Ray: each part is one process, by submitit.

submitit gives a job to its node as a pickle, which the job reads: of a folder that only this sweep
writes to, and with nothing in it but the words of a command. None is read here.
"""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import DelayedSubmission

from capsweep.errors import ConfigError

PATIENCE = 60.0  # seconds that a part may take to keep its checkpoint
FORMS = (
    r"(?P<minutes>\d+)(:(?P<seconds>\d+))?",
    r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?",
)
MINUTES = {"days": 1440, "hours": 60, "minutes": 1, "seconds": 1 / 60}


class Part:
    """One part of the cells, run where Slurm starts it; queued again at the end of its time."""

    def __init__(self, words: Sequence[str], folder: str) -> None:
        self.words, self.folder = list(words), folder
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        # Slurm's warning goes to every process: a part that knows nothing of it would end at once.
        warning = {signal.SIGUSR1, signal.SIGUSR2}
        signal.pthread_sigmask(signal.SIG_BLOCK, warning)
        self.process = subprocess.Popen(self.words, cwd=self.folder)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, warning)
        # Popen's own wait keeps a lock, for which that of a signal's handler would wait.
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        status = self.process.wait()
        if status:
            raise RuntimeError(f"exit status {status} of {self.words}")
        return status

    def checkpoint(self) -> DelayedSubmission:
        """End the process as Ctrl-C does, and say what is to be run again."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return DelayedSubmission(Part(self.words, self.folder))


def submit_parts(
    cluster: Mapping[str, Any], job: str, commands: Sequence[Sequence[str]], folder: Path
) -> list[submitit.Job[int]]:
    """Submit one job for each command. folder: for the logs and what submitit keeps.

    Raises ConfigError naming the key that Slurm or submitit cannot take.
    """
    executor = submitit.AutoExecutor(
        folder, cluster=cluster["array"]["through"], slurm_max_num_timeout=cluster["requeues"]
    )
    try:
        executor.update_parameters(**make_parameters(cluster, job))
        with executor.batch():
            return [executor.submit(Part(words, os.getcwd())) for words in commands]
    except (ValueError, FailedJobError, FailedSubmissionError, OSError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"cluster={cluster['name']}: the array is refused: {text}") from error


def make_parameters(cluster: Mapping[str, Any], job: str) -> dict[str, Any]:
    """What submitit takes, of the keys of conf/cluster/slurm.yaml; null is Slurm's own choice."""
    keys = ("partition", "account", "qos", "constraint")
    values = {f"slurm_{key}": cluster[key] for key in keys} | {"slurm_mem": cluster["memory"]}
    if cluster["setup"] is not None:
        setup = os.path.abspath(os.path.expanduser(cluster["setup"]))
        values["slurm_setup"] = [f"source {shlex.quote(setup)}"]
    if cluster["gpus"]:
        values["slurm_gres"] = f"gpu:{cluster['gpus']}"
    return {
        "name": job,
        "timeout_min": parse_minutes(cluster["time"]),
        "cpus_per_task": cluster["cpus"],
        "slurm_signal_delay_s": cluster["warn_seconds"],
        "slurm_array_parallelism": cluster["array"]["parallel"],
        "slurm_additional_parameters": {"requeue" if cluster["requeues"] else "no-requeue": True},
    } | {key: value for key, value in values.items() if value is not None}


def parse_minutes(text: str) -> int:
    """Minutes of a time as Slurm writes it: 90, 90:00, 4:00:00, 2-12, 2-12:30:00.

    Raises ConfigError naming cluster.time.
    """
    for form in FORMS:
        if match := re.fullmatch(form, text):
            parts = match.groupdict(default="0")
            minutes = sum(int(parts.get(unit, "0")) * size for unit, size in MINUTES.items())
            return max(1, round(minutes))
    raise ConfigError(f"cluster.time={text}: must be a time of Slurm, such as 04:00:00 or 2-12")
