"""The doctor: what it finds, and the cure of each fault."""

import json
from pathlib import Path

import pytest
import torch

from capsweep import cli
from capsweep.cli import doctor


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


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where Ray's token is; nothing else is said of it."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    return path


@pytest.mark.parametrize(("rights", "is_fault"), [(0o600, False), (0o644, True), (0o660, True)])
def test_a_token_that_others_may_read_is_a_fault(token: Path, rights: int, is_fault: bool) -> None:
    token.write_text("secret")
    token.chmod(rights)
    cures = [finding.cure for finding in doctor._token() if finding.cure]
    assert [f"chmod 600 {token}" in cure for cure in cures] == [True] * is_fault
    assert not any("secret" in finding.found for finding in doctor._token())


def test_a_ray_without_tokens_is_a_fault(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(finding.cure for finding in doctor._token())
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    (fault,) = [finding for finding in doctor._token() if finding.cure]
    assert fault.cure is not None
    assert "export RAY_AUTH_MODE=token" in fault.cure


@pytest.mark.parametrize(
    ("address", "is_noted"), [("http://127.0.0.1:8265", False), ("http://10.0.0.4:8265", True)]
)
def test_a_dashboard_beyond_loopback_is_noted(
    token: Path, monkeypatch: pytest.MonkeyPatch, address: str, is_noted: bool
) -> None:
    assert not list(doctor._dashboard())
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
    (finding,) = doctor._dashboard()
    assert (finding.cure is not None) == is_noted


@pytest.mark.skipif(torch.cuda.is_available(), reason="bfloat16 is computed on the GPU there")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_processor_that_must_emulate_bfloat16_is_noted(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: is_there)
    told = [finding for finding in doctor.examine() if finding.subject == "bfloat16"]
    assert [finding.mark for finding in told] == ([] if is_there else ["note"])
