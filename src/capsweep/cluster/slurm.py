"""Sweeps on Slurm: a batch job with Ray on its nodes, or an array of jobs without Ray.

The script is `conf/cluster/slurm.sh.j2`, rendered. The environment that renders it quotes what it
inserts: each value becomes one word of the shell, whatever is in it.
"""

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from capsweep.cluster.driver import name_command
from capsweep.config import package_files, places
from capsweep.errors import ConfigError
from capsweep.storage.files import write_text

TEMPLATE = "slurm.sh.j2"
DIRECTIVE = re.compile(r"[A-Za-z0-9_@%+=:,./&|*()\[\]-]+")  # what sbatch reads without quotes


def render_script(
    cluster: Mapping[str, Any],
    sweep: str,
    words: Sequence[str],
    folder: Path,
    is_array: bool = False,
) -> tuple[str, str]:
    """Return name and text of the script that drives `capsweep words` from the current folder.

    folder: of the job's log. is_array: each job of an array drives its part, without Ray.
    Raises ConfigError naming the key that sbatch cannot take.
    """
    job, setup = name_command(Path(sweep).stem, words), cluster["setup"]
    values = {
        **cluster,
        "job": job,
        "log": str(folder / f"{job}-{'%A_%a' if is_array else '%j'}.log"),
        "folder": os.getcwd(),
        "setup": None if setup is None else places.absolute(setup),
        "token": places.absolute(cluster["token"]),
        "programs": str(Path(sys.executable).parent),
        "command": [sys.executable, "-m", "capsweep", *words],
        "parts": cluster["array"]["parts"] if is_array else 0,
        # Without Ray, SIGTERM would let a cell go on to the end of its epoch.
        "signal": "INT" if is_array else "TERM",
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
    """Return one word of the shell, or several of a list."""
    if isinstance(value, (list, tuple)):
        return shlex.join(map(str, value))
    return shlex.quote(str(value))


def check_directive(value: Any, key: str) -> str:
    """Return a value of an `#SBATCH` line, which ends with the line. Raises ConfigError."""
    text = str(value)
    if DIRECTIVE.fullmatch(text) is None:
        raise ConfigError(f"cluster.{key}={text!r}: sbatch reads {DIRECTIVE.pattern} alone")
    return text


def submit_script(cluster: Mapping[str, Any], name: str, text: str, folder: Path) -> int:
    """Write the script into `folder` and submit it; returns the exit status."""
    if shutil.which("sbatch") is None:
        raise ConfigError("sbatch: no such program here; type this on a login node of the cluster")
    ensure_token(cluster["token"])
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
    print(f"submitted as job {job}")
    print(f"  tail -F {folder / script.stem}-{job}*.log")
    print(f"  scancel --batch --signal=TERM {job}  # ends it with its checkpoints kept")
    print("the same command, typed when it has ended, runs what is missing")
    return 0


def ensure_token(place: str) -> None:
    """Make the file of the token without which nobody may speak to the job's Ray, unless it is
    there; it is readable by its owner alone.

    Raises ConfigError naming cluster.token when it is empty or cannot be written.
    """
    path = Path(places.absolute(place))
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(0o600)
            path.write_text(secrets.token_hex(32), encoding="utf-8")
            print(f"made a token in {path}: who can read it can use the cluster")
        path.chmod(0o600)
        if not path.read_text(encoding="utf-8", errors="replace").strip():
            raise ConfigError(f"cluster.token={path}: is empty; remove it, and it is made anew")
    except OSError as error:
        raise ConfigError(f"cluster.token={place}: {error.strerror}; name another file") from error
