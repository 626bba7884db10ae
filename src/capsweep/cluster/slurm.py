"""Sweeps on Slurm: a batch job with Ray on its nodes, or an array of jobs without Ray.

The batch script is rendered from `conf/cluster/slurm.sh.j2`. Each inserted value is quoted, so that
its special characters have no meaning for the shell.
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
DIRECTIVE = re.compile(r"[A-Za-z0-9_@%+=:,./&|*()\[\]-]+")  # values that need no quotes


def render_script(
    cluster: Mapping[str, Any], sweep: str, words: Sequence[str], folder: Path, is_array: bool
) -> tuple[str, str]:
    """Render the batch script that runs `capsweep WORDS` in the current folder.

    Args:
        cluster: The section `cluster` of the configuration.
        sweep: Name or file of the sweep.
        words: Words of the command after `capsweep`.
        folder: Folder for the log of the job.
        is_array: Whether the script is for a job array. Each job of an array runs a part of the
            sweep, without Ray.

    Returns:
        Name and text of the script.

    Raises:
        ConfigError: A value has characters that sbatch cannot read; the error names the key.
    """
    job, setup = name_command(Path(sweep).stem, words), cluster["setup"]
    values = {
        **cluster,
        "job": job,
        "log": str(folder / f"{job}-{'%A_%a' if is_array else '%j'}.log"),
        "folder": os.getcwd(),
        "setup": None if setup is None else places.resolve_path(setup),
        "token": places.resolve_path(cluster["token"]),
        "programs": str(Path(sys.executable).parent),
        "command": [sys.executable, "-m", "capsweep", *words],
        "parts": cluster["array"]["parts"] if is_array else 0,
        # Without Ray, a cell would continue to the end of its epoch after a SIGTERM.
        "signal": "INT" if is_array else "TERM",
    }
    environment = Environment(
        loader=FileSystemLoader(package_files.find_folder("conf") / "cluster"),
        undefined=StrictUndefined,
        finalize=quote_value,
        autoescape=False,  # escapes are for HTML
    )
    environment.filters["directive"] = check_directive
    return f"{job}.sh", environment.get_template(TEMPLATE).render(values) + "\n"


def quote_value(value: Any) -> str:
    """Return a value as one quoted word for the shell, or a list as several quoted words."""
    words = value if isinstance(value, list | tuple) else [value]
    return shlex.join(map(str, words))


def check_directive(value: Any, key: str) -> str:
    """Check that a value needs no quotes in an `#SBATCH` line, and return the value as text.

    Args:
        value: A value of the section `cluster`.
        key: Key of the value, for the error.

    Raises:
        ConfigError: The value has a character that sbatch does not allow; the error names the key.
    """
    text = str(value)
    if DIRECTIVE.fullmatch(text) is None:
        raise ConfigError(f"cluster.{key}={text!r}: sbatch allows only {DIRECTIVE.pattern}")
    return text


def submit_script(cluster: Mapping[str, Any], name: str, text: str, folder: Path) -> None:
    """Write a script into `folder`, submit it with sbatch, and print how to follow or stop the job.

    Raises:
        ConfigError: This machine has no sbatch, sbatch refuses the script, or the file of the token
            is empty or cannot be written.
    """
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
    print(f"  scancel --batch --signal=TERM {job}  # stops it and keeps its checkpoints")
    print("when the job has ended, type the same command again to continue")


def ensure_token(place: str) -> None:
    """Write a new token to the file `place`, unless the file exists.

    The Ray cluster of the job accepts only clients that send this token. Only the owner of the file
    can read the token.

    Raises:
        ConfigError: The file is empty, or the file cannot be written; the error names the key
            cluster.token.
    """
    path = Path(places.resolve_path(place))
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(0o600)
            path.write_text(secrets.token_hex(32), encoding="utf-8")
            print(f"wrote a token to {path}: anyone who can read it can use the cluster")
        path.chmod(0o600)
        if not path.read_text(encoding="utf-8", errors="replace").strip():
            raise ConfigError(f"cluster.token={path}: empty file; remove it to get a new token")
    except OSError as error:
        raise ConfigError(f"cluster.token={place}: {error.strerror}; name another file") from error
