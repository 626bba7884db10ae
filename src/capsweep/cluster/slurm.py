"""Sweeps on Slurm: a batch job with Ray on its nodes, or an array of jobs without Ray.

The script is `conf/cluster/slurm.sh.j2`, rendered. The environment that renders it quotes what it
inserts: each value becomes one word of the shell, whatever is in it.

Each part of an array is one process, by submitit, which gives a job to its node as a pickle: in a
folder that only this sweep writes to, with the words of a command in it. None is read here.
"""

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from capsweep.cluster.driver import name_command
from capsweep.config import package_files
from capsweep.errors import ConfigError
from capsweep.storage.files import write_text

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

TEMPLATE = "slurm.sh.j2"
PATIENCE = 60.0  # seconds that a part may take to keep its checkpoint
TIME = re.compile(r"((?P<days>\d+)-)?(?P<rest>\d+(:\d+){0,2})")  # as Slurm writes it
DIRECTIVE = re.compile(r"[A-Za-z0-9_@%+=:,./&|*()\[\]-]+")  # what sbatch reads without quotes


def render_script(
    cluster: Mapping[str, Any], sweep: str, words: Sequence[str], folder: Path
) -> tuple[str, str]:
    """Name and text of the script that drives `capsweep words` from the current folder.

    folder: of the job's log. Raises ConfigError naming the key that sbatch cannot take.
    """
    job, setup = name_command(Path(sweep).stem, words), cluster["setup"]
    values = {
        **cluster,
        "job": job,
        "log": str(folder / f"{job}-%j.log"),
        "folder": os.getcwd(),
        "setup": None if setup is None else str(_absolute_path(setup)),
        "token": str(_absolute_path(cluster["token"])),
        "programs": str(Path(sys.executable).parent),
        "command": [sys.executable, "-m", "capsweep", *words],
    }
    environment = Environment(
        loader=FileSystemLoader(package_files.find_folder("conf") / "cluster"),
        undefined=StrictUndefined,
        finalize=quote_value,
        autoescape=False,  # of HTML
    )
    environment.filters["directive"] = check_directive
    return f"{job}.sh", environment.get_template(TEMPLATE).render(values) + "\n"


def quote_value(value: Any) -> str:
    """One word of the shell, or several of a list."""
    if isinstance(value, (list, tuple)):
        return shlex.join(map(str, value))
    return shlex.quote(str(value))


def check_directive(value: Any, key: str) -> str:
    """A value of an `#SBATCH` line: a comment to the shell, whose end of line nothing may move."""
    text = str(value)
    if DIRECTIVE.fullmatch(text) is None:
        raise ConfigError(f"cluster.{key}={text!r}: sbatch reads {DIRECTIVE.pattern} alone")
    return text


def submit_script(
    cluster: Mapping[str, Any], name: str, text: str, folder: Path, say: Callable[[str], None]
) -> int:
    """Write the script into `folder` and submit it; returns the exit status."""
    if shutil.which("sbatch") is None:
        raise ConfigError("sbatch: no such program here; type this on a login node of the cluster")
    ensure_token(cluster["token"], say)
    script = folder / name
    write_text(script, text)
    command = ["sbatch", "--parsable", str(script)]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL
    )
    number = re.match(r"\d+", done.stdout.strip())
    if done.returncode or number is None:
        reason = " ".join(done.stderr.split()) or done.stdout
        raise ConfigError(f"cluster={cluster['name']}: sbatch refused {script} ({reason})")
    job = number[0]
    say(f"submitted as job {job}; a second one of the same sweep waits until it has ended")
    say(f"  tail -F {folder / f'{script.stem}-{job}.log'}")
    say(f"  scancel --batch --signal=TERM {job}  # ends it with its checkpoints kept")
    say("the same command, typed when it has ended, runs what is missing")
    return 0


def ensure_token(place: str, say: Callable[[str], None]) -> None:
    """The file of the token without which nobody may speak to the job's Ray: made when there is
    none, and readable by its owner alone.

    Raises ConfigError naming cluster.token when it is empty or cannot be written.
    """
    path = _absolute_path(place)
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(0o600)
            path.write_text(secrets.token_hex(32), encoding="utf-8")
            say(f"made a token in {path}: who can read it can use the cluster")
        path.chmod(0o600)
        if not path.read_text(encoding="utf-8", errors="replace").strip():
            raise ConfigError(f"cluster.token={path}: is empty; remove it, and it is made anew")
    except OSError as error:
        raise ConfigError(f"cluster.token={place}: {error.strerror}; name another file") from error


def _absolute_path(place: str) -> Path:
    """With `~` replaced, and without touching the disk."""
    return Path(os.path.abspath(os.path.expanduser(place)))


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

    def checkpoint(self) -> "DelayedSubmission":
        """End the process as Ctrl-C does, and say what is to be run again."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return DelayedSubmission(Part(self.words, self.folder))


def submit_parts(
    cluster: Mapping[str, Any], job: str, commands: Sequence[Sequence[str]], folder: Path
) -> "list[Job[int]]":
    """Submit one job for each command. folder: for the logs and what submitit keeps.

    Raises ConfigError where Slurm or submitit refuses it, or submitit is not installed.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigError(f"EXECUTOR=array: {error}; pip install 'capsweep[slurm]'") from error
    through, requeues = cluster["array"]["through"], cluster["requeues"]
    try:
        executor = submitit.AutoExecutor(folder, cluster=through, slurm_max_num_timeout=requeues)
        executor.update_parameters(**make_parameters(cluster, job))
        with executor.batch():
            return [executor.submit(Part(words, os.getcwd())) for words in commands]
    except (ValueError, RuntimeError, OSError) as error:  # RuntimeError: submitit's own
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
    match = TIME.fullmatch(text)
    if match is None:
        raise ConfigError(f"cluster.time={text}: must be a time of Slurm, such as 04:00:00 or 2-12")
    numbers = [int(number) for number in match["rest"].split(":")]
    if match["days"] or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, minutes, seconds = 0, *[*numbers, 0][:2]
    whole_hours = int(match["days"] or 0) * 24 + hours
    return max(1, round(whole_hours * 60 + minutes + seconds / 60))
