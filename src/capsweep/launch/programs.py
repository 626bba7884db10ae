"""The programs that launch: looked for before anything is started."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from capsweep.errors import ConfigError

CURES: Mapping[str, str] = {
    "ray": "pip install 'capsweep[ray]'",
    "kubectl": "install Kubernetes' client and give it a context",
    "sbatch": "type this on a login node of the Slurm cluster",
}
BESIDE = Path(sys.executable).parent  # programs of the environment that this one is of


def find(name: str) -> str:
    """The path of a program: of PATH, or beside this Python. Raises ConfigError with the cure."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(BESIDE)])
    found = shutil.which(name, path=path)
    if found is None:
        raise ConfigError(f"{name}: no such program on this machine; {CURES[name]}")
    return found


def run(words: Sequence[str], given: str | None = None) -> int:
    """Run a program in the terminal; returns its exit status. given: its input."""
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.run(words, input=given, text=True, env=environment).returncode


def follow(words: Sequence[str]) -> tuple[int, str]:
    """Run a program whose output is seen as it comes; returns its exit status, and the last line of
    its errors: the reason, after what it may have logged.
    """
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, "".join(done.stderr.strip().splitlines()[-1:])


def ask(words: Sequence[str]) -> tuple[int, str, str]:
    """Run a program quietly; returns its exit status, its output, and its errors in one line."""
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, " ".join(done.stderr.split())
