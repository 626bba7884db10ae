"""`capsweep wandb dashboard`: what would be sent can be seen without an account."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from wandb_server import WandbServer

from capsweep import cli

# wandb-workspaces 0.4.13 has validators in a style that pydantic is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")

CHOICE = ("ablation", "--arms", "cnn,capsnet", "--seeds", "1")


def dashboard(storage: Path, *more: str) -> int:
    return cli.main(["wandb", "dashboard", *CHOICE, "--storage", str(storage), *more])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as here:
        for name, value in here.environment.items():
            monkeypatch.setenv(name, value)
        yield here


def test_without_a_login_it_says_what_it_would_send(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dashboard(tmp_path) == 2
    said = capsys.readouterr().err
    assert "would save the workspace 'capsweep ablation' (7 panels) in capsweep" in said
    assert "run `wandb login`" in said


def test_the_specification_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dashboard(tmp_path, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == "capsweep ablation"
    assert dashboard(tmp_path, "--dry-run") == 0
    assert json.loads(capsys.readouterr().out)["name"] == told["name"]


def test_with_a_login_it_is_saved_and_found_again(
    tmp_path: Path, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dashboard(tmp_path) == 0
    url = capsys.readouterr().out
    assert dashboard(tmp_path) == 0
    assert capsys.readouterr().out == url
    assert len(server.cloud.views) == 1


def test_cells_without_wandb_have_no_dashboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dashboard(tmp_path, "logger=csv") == 2
    assert "use logger=wandb" in capsys.readouterr().err


def test_a_missing_package_is_said_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert dashboard(tmp_path) == 2
    assert "pip install 'capsweep[wandb]'" in capsys.readouterr().err
