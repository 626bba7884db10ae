"""The doctor: what it finds, and the cure of each fault."""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from capsweep import cli
from capsweep.cli import doctor
from capsweep.cli.doctor import Finding


def cures_of(findings: Iterable[Finding]) -> list[str]:
    return [finding.cure for finding in findings if finding.cure]


def test_a_good_environment_has_no_fatal_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path))
    assert cli.main(["doctor"]) == 0
    output = capsys.readouterr().out
    for subject in ("python", "torch", "ray", "storage", "data", "gpu", "wandb"):
        assert f" {subject}: " in output
    assert "nobody is logged in" in output


@pytest.mark.parametrize(
    ("variable", "value", "begin", "end"),
    [
        (
            "STORAGE",
            "/proc/capsweep",
            "FAIL places: places.storage: /proc/capsweep ",
            "; set STORAGE=... (or places.storage=...) to a writable folder",
        ),
        (
            "WANDB_BASE_URL",
            "foo",
            "FAIL wandb: W&B's settings: WANDB_BASE_URL: ",
            "; correct them, or set logger=csv",
        ),
    ],
)
def test_a_wrong_setting_is_a_fault_with_its_cure_beside_the_other_findings(
    variable: str,
    value: str,
    begin: str,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path))
    monkeypatch.setenv(variable, value)
    assert cli.main(["doctor"]) == 1
    (fault,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("FAIL")]
    assert fault.startswith(begin)
    assert fault.endswith(end)


def test_without_torch_the_doctor_says_that_it_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = doctor.find_version
    monkeypatch.setattr(doctor, "find_version", lambda n: None if n == "torch" else version(n))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("STORAGE", str(tmp_path))
    assert cli.main(["doctor"]) == 1
    assert "FAIL torch: is absent; run make setup" in capsys.readouterr().out


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where Ray's token is; no other setting of Ray's is there."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    path = tmp_path / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    return path


@pytest.mark.parametrize(("rights", "cures"), [(0o600, 0), (0o644, 1), (0o660, 1)])
def test_a_token_that_others_may_read_is_a_fault(token: Path, rights: int, cures: int) -> None:
    token.write_text("secret")
    token.chmod(rights)
    findings = list(doctor.check_ray())
    assert cures_of(findings) == cures * [
        f"others may read it, and so run code as you: chmod 600 {token}"
    ]
    assert not any("secret" in finding.fact for finding in findings)


@pytest.mark.usefixtures("token")
def test_a_ray_without_tokens_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cures_of(doctor.check_ray())
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    (cure,) = cures_of(doctor.check_ray())
    assert "export RAY_AUTH_MODE=token" in cure
