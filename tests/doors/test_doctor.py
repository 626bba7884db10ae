"""The doctor: what it finds, and the cure of each fault."""

import json
from pathlib import Path

import pytest

from capsweep import cli, doctor


def test_a_good_environment_has_no_fatal_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path))
    assert doctor.main() == 0
    said = capsys.readouterr().out
    for subject in ("python", "torch", "lightning", "ray", "storage", "data", "gpu", "wandb"):
        assert f" {subject}: " in said
    assert "nobody is logged in" in said


def test_a_storage_that_cannot_be_written_is_a_fault_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE", "/proc/capsweep")
    assert doctor.main() == 1
    said = capsys.readouterr().out
    assert "FAIL places" in said
    assert "set STORAGE=" in said


def test_json_has_the_same_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE", "/proc/capsweep")
    assert cli.main(["doctor", "--json"]) == 1
    told = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert told["python"]["status"] == "ok"
    assert told["python"]["cure"] is None
    assert told["places"]["status"] == "FAIL"
    assert "set STORAGE=" in told["places"]["found"]


def test_a_second_lightning_is_a_fault_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda n: "2.6" if n == "lightning" else installed(n))
    cures = [finding.cure for finding in doctor._lightning() if finding.cure]
    assert len(cures) == 1
    assert "pip uninstall lightning" in cures[0]
