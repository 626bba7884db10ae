"""Fresh interpreters, and the files of the repository."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def fresh() -> Callable[..., str]:
    """Runs a program in an interpreter that has imported nothing; returns what it printed."""

    def run(program: str, *arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run
