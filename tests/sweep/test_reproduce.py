"""`capsweep ledger reproduce`: what it prints is paste_text into a shell, and files are foreign."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from capsweep import cli
from capsweep.config import compose
from capsweep.ledger.ledger import folder_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


Reproduce = Callable[..., str]


@pytest.fixture
def reproduce(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Reproduce:
    """What `ledger reproduce` prints of a cell with this provenance, errors last."""

    def run_command(provenance: dict, *more: str, status: int = 0) -> str:
        cell = compose.cell(["seed=3"])
        folder = tmp_path / "ledger" / folder_of(cell.signature)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(cell.science))
        (folder / "provenance.json").write_text(json.dumps(provenance))
        words = ["ledger", "reproduce", cell.signature, *more, f"STORAGE={tmp_path}"]
        assert cli.main(words) == status
        return "".join(capsys.readouterr())

    return run_command


@pytest.fixture(autouse=True)
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that a text may name, which do nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "capsweep"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def paste_text(text: str, tmp_path: Path) -> list[str]:
    """What is there after a shell was given the text, but for the commands it names."""
    place = tmp_path / "paste_text"
    place.mkdir()
    subprocess.run(["bash", "-c", text], cwd=place, check=True, timeout=120)
    return [file.name for file in place.iterdir()]


def test_what_it_prints_can_be_typed_where_capsweep_is_on_no_path(
    tmp_path: Path, reproduce: Reproduce
) -> None:
    (tmp_path / "bin" / "capsweep").unlink()
    command = reproduce({"overrides": ["seed=3"]}).splitlines()[-1]
    shown = subprocess.run(f"{command} --cfg job", shell=True, capture_output=True, text=True)
    assert (shown.returncode, "seed: 3" in shown.stdout) == (0, True)


def test_a_cell_without_a_result_is_not_compared(reproduce: Reproduce) -> None:
    output = reproduce({"overrides": ["seed=3"]}, "--run", status=2)
    assert "has no result to compare with; type the command above" in output


@pytest.mark.parametrize(
    ("commit", "overrides"),
    [
        ("main; touch X #", ["no.such.key=1"]),
        ("main\ntouch X #", ["seed=3"]),
        (COMMIT, ["no.such.key=1; touch X"]),
        (COMMIT, ["no.such.key=$(touch X)"]),
    ],
)
def test_what_it_prints_runs_nothing_but_the_cell(
    commit: str, overrides: list[str], tmp_path: Path, reproduce: Reproduce
) -> None:
    output = reproduce({"code": {"commit": commit}, "overrides": overrides})
    assert paste_text(output, tmp_path) == []
    assert (commit == COMMIT) == (f"git checkout {COMMIT} && capsweep train" in output)
    assert (commit == COMMIT) != ("provenance.json has no valid commit" in output)


@pytest.mark.parametrize(
    "overrides",
    [["--config-dir=/tmp/evil"], ["hydra.run.dir=/"], [3], "seed=3", ["seed=3\x1b[2J"]],
)
def test_overrides_that_capsweep_never_wrote_are_refused(
    overrides: object, reproduce: Reproduce
) -> None:
    output = reproduce({"overrides": overrides}, status=2)
    assert re.match(r"error: .*[0-9a-f]{16}.*provenance\.json", output)
