"""The doctor: what it finds, and the cure of each fault."""

import re
import sys
from pathlib import Path

import pytest

from capsweep import cli
from capsweep.cli import doctor


def test_a_good_environment_has_no_fatal_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path))
    assert cli.main(["doctor"]) == 0
    output = capsys.readouterr().out
    for subject in ("python", "torch", "ray", "storage", "data", "gpu", "wandb"):
        assert f" {subject}: " in output
    assert "nobody is logged in" in output


FAULTS = {
    "STORAGE=/proc/x": "places: places.storage: /proc/x .*; set STORAGE=.* to a writable folder",
    "WANDB_BASE_URL=foo": "wandb: W&B's settings: WANDB_BASE_URL: .*, or set logger=csv",
}


@pytest.mark.parametrize("setting", FAULTS)
def test_a_wrong_setting_is_a_fault_with_its_cure_beside_the_other_findings(
    setting: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path))
    monkeypatch.setenv(*setting.split("="))
    assert cli.main(["doctor"]) == 1
    (fault,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("FAIL")]
    assert re.fullmatch(f"FAIL {FAULTS[setting]}", fault)


def test_without_torch_the_doctor_says_that_it_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = doctor.find_version
    monkeypatch.setattr(doctor, "find_version", lambda n: None if n == "torch" else version(n))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("STORAGE", str(tmp_path))
    assert cli.main(["doctor"]) == 1
    assert "FAIL torch: is missing; run make setup" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "rights", "cure"),
    [
        ("token", 0o600, None),
        ("token", 0o644, "others can read it, and then run code as you; type chmod 600 "),
        ("token", 0o660, "others can read it, and then run code as you; type chmod 600 "),
        ("disabled", 0o600, "export RAY_AUTH_MODE=token"),
    ],
)
def test_a_ray_that_others_can_use_is_a_fault(
    mode: str, rights: int, cure: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "auth_token"
    token.write_text("secret")
    token.chmod(rights)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    findings = list(doctor.check_ray())
    said = [finding.cure for finding in findings if finding.cure]
    assert (not said) if cure is None else [cure in each for each in said] == [True]
    assert not any("secret" in finding.fact for finding in findings)
