"""Sweeps as batch jobs of Slurm, with Ray on the job's nodes: `conf/cluster/slurm.sh.j2`, rendered.

What the template inserts is quoted by the environment it is rendered in, not by the template: each
value becomes one word of the shell, whatever is in it.
"""

import hashlib
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError

from capsweep.config import package_files
from capsweep.errors import ConfigError
from capsweep.storage.files import write_atomically, write_text

TEMPLATE = "slurm.sh.j2"
NAME_LENGTH = 40  # characters of a job's name
DIRECTIVE = re.compile(r"[A-Za-z0-9_@%+=:,./&|*()\[\]-]+")  # what sbatch reads without quotes


def name_job(sweep: str, command: Sequence[str]) -> str:
    """A job's name: of the sweep, different for different choices, and the same for the same."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(sweep).stem.lower()).strip("-")
    digest = hashlib.sha256("\0".join(command).encode()).hexdigest()[:8]
    room = NAME_LENGTH - len("capsweep--") - len(digest)
    return f"capsweep-{stem[:room].strip('-') or 'sweep'}-{digest}"


def render_script(
    cluster: Mapping[str, Any], sweep: str, words: Sequence[str], folder: Path
) -> tuple[str, str]:
    """Name and text of the script that drives `capsweep words` from the current folder.

    folder: of the job's log. Raises ConfigError naming the key that sbatch cannot take.
    """
    job, setup = name_job(sweep, words), cluster["setup"]
    values = {
        **cluster,
        "job": job,
        "log": str(folder / f"{job}-%j.log"),
        "folder": os.getcwd(),
        "setup": None if setup is None else str(_absolute_path(setup)),
        "token": str(_absolute_path(cluster["token"])),
        "programs": str(Path(sys.executable).parent),
        "python": sys.executable,
        "command": [sys.executable, "-m", "capsweep", *words],
    }
    return f"{job}.sh", render_template(values)


def render_template(values: Mapping[str, Any], template: str = TEMPLATE) -> str:
    """A template beside conf/cluster. Raises ConfigError naming what it asks for in vain."""
    environment = Environment(
        loader=FileSystemLoader(package_files.find_folder("conf") / "cluster"),
        undefined=StrictUndefined,
        finalize=quote_value,
        autoescape=False,  # of HTML
    )
    environment.filters["directive"] = check_directive
    try:
        return environment.get_template(template).render(values) + "\n"
    except UndefinedError as error:
        raise ConfigError(f"conf/cluster/{template}: {error.message}") from error


def quote_value(value: Any) -> str:
    """One word of the shell, or several of a list."""
    if isinstance(value, (list, tuple)):
        return shlex.join(map(str, value))
    return shlex.quote(str(value))


def check_directive(value: Any, key: str) -> str:
    """A value of an `#SBATCH` line: a comment to the shell, whose end of line nothing may move."""
    text = str(value)
    if DIRECTIVE.fullmatch(text) is None:
        raise ConfigError(
            f"cluster.{key}={text!r}: letters, digits and _@%+=:,./&|*()[]- alone may stand in a "
            "line that sbatch reads"
        )
    return text


def submit_script(
    cluster: Mapping[str, Any], name: str, text: str, folder: Path, say: Callable[[str], None]
) -> int:
    """Write the script into `folder` and submit it; returns the exit status."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), beside])
    sbatch = shutil.which("sbatch", path=path)
    if sbatch is None:
        raise ConfigError(
            "sbatch: no such program on this machine; type this on a login node of the cluster"
        )
    ensure_token(cluster["token"], say)
    script = folder / name
    write_text(script, text)
    command = [sbatch, "--parsable", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
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


def ensure_token(place: str, say: Callable[[str], None]) -> Path:
    """The file of the token without which nobody may speak to the job's Ray: made when there is
    none, and readable by its owner alone.

    Raises ConfigError naming cluster.token when it is empty or cannot be written.
    """
    path = _absolute_path(place)
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(path, lambda file: _fill_token(file.fileno()))
            say(f"made a token in {path}: who can read it can use the cluster")
        elif path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            path.chmod(0o600)
            say(f"others could read the token in {path}: now its owner alone can")
        if not path.read_text(errors="replace").strip():
            raise ConfigError(f"cluster.token={path}: is empty; remove it, and it is made anew")
    except OSError as error:
        raise ConfigError(f"cluster.token={place}: {error.strerror}; name another file") from error
    return path


def _absolute_path(place: str) -> Path:
    """With `~` replaced, and without touching the disk."""
    return Path(os.path.abspath(os.path.expanduser(place)))


def _fill_token(descriptor: int) -> None:
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, secrets.token_hex(32).encode())
