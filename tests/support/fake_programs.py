"""Small real programs in the place of those that have no server here (kubectl, ray up, sbatch)."""

import os
import shlex
from pathlib import Path

import pytest

HOSTILE = (
    "a'b",
    'a"b',
    "a\nb: c\n- d",
    "$(touch broken)",
    "`touch broken`",
    "${HOME}",
    "a; touch broken #",
    "{{ name }}",
    "{a: b}",
    "*anchor",
    "!!python/object",
    "no",
    "1e3",
    "ü 漢 😀",
    "tab\there\x85\u2028end\\",
)


class Programs:
    """A folder in front of PATH. Each program records the words that it was called with."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder = folder
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def add(self, name: str, then: str = "exit 0") -> None:
        """A program that goes on with `then`, a piece of shell."""
        record = shlex.quote(str(self.folder / f"{name}.calls"))
        program = self.folder / name
        program.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" $'\\n' >> {record}\n{then}\n")
        program.chmod(0o755)

    def calls(self, name: str) -> list[list[str]]:
        """The words of every call so far."""
        record = self.folder / f"{name}.calls"
        text = record.read_text() if record.exists() else ""
        return [call.split("\0")[:-1] for call in text.split("\n\0")[:-1]]
