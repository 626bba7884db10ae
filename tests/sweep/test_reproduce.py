"""`capsweep ledger reproduce`: what it prints is paste_text into a shell, and files are foreign."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from capsweep import cli
from capsweep.config import compose
from capsweep.ledger.ledger import folder_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def store_cell(storage: Path, provenance: dict) -> str:
    """A cell of a ledger with this provenance; its signature."""
    cell = compose.cell(["seed=3"])
    folder = storage / "ledger" / folder_of(cell.signature)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(cell.science))
    (folder / "provenance.json").write_text(json.dumps(provenance))
    return cell.signature


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin" / "capsweep").unlink()
    signature = store_cell(tmp_path, {"overrides": ["seed=3"]})
    assert cli.main(["ledger", "reproduce", signature, f"STORAGE={tmp_path}"]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    shown = subprocess.run(f"{command} --cfg job", shell=True, capture_output=True, text=True)
    assert (shown.returncode, "seed: 3" in shown.stdout) == (0, True)


def test_a_cell_without_a_result_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = store_cell(tmp_path, {"overrides": ["seed=3"]})
    assert cli.main(["ledger", "reproduce", signature, "--run", f"STORAGE={tmp_path}"]) == 2
    assert "has no result to compare with; type the command above" in capsys.readouterr().err


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
    commit: str, overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = store_cell(tmp_path, {"code": {"commit": commit}, "overrides": overrides})
    assert cli.main(["ledger", "reproduce", signature, f"STORAGE={tmp_path}"]) == 0
    output = capsys.readouterr().out
    assert paste_text(output, tmp_path) == []
    assert (commit == COMMIT) == (f"git checkout {COMMIT} && capsweep train" in output)
    assert (commit == COMMIT) != ("provenance.json has no valid commit" in output)


@pytest.mark.parametrize(
    "overrides",
    [["--config-dir=/tmp/evil"], ["hydra.run.dir=/"], [3], "seed=3", ["seed=3\x1b[2J"]],
)
def test_overrides_that_capsweep_never_wrote_are_refused(
    overrides: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = store_cell(tmp_path, {"overrides": overrides})
    assert cli.main(["ledger", "reproduce", signature, f"STORAGE={tmp_path}"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.match(rf"error: .*{signature}.*provenance\.json", output.err)
