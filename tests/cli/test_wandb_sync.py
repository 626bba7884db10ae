"""`capsweep wandb sync`: nothing to do, or a login is needed, in one line."""

import json
import socket
from pathlib import Path

import pytest
import tracked_cells
from wandb_server import KEY

from capsweep import cli

# wandb-workspaces 0.4.13 has validators in a style that pydantic is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")


def sync(storage: Path, *more: str) -> int:
    return cli.main(["wandb", "sync", "--storage", str(storage), *more])


def test_without_cells_there_is_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync(tmp_path) == 0
    assert "no cell of this ledger was tracked with W&B" in capsys.readouterr().out


def test_cells_that_wait_need_a_login(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracked_cells.write(tmp_path, 0)
    assert sync(tmp_path) == 2
    said = capsys.readouterr().err
    assert "1 cells wait, but nobody is logged in at http" in said
    assert "wandb login" in said


@pytest.mark.parametrize("door", ["sync", "dashboard"])
def test_where_nobody_listens_it_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    tracked_cells.write(tmp_path, 0)
    monkeypatch.setattr("capsweep.tracking.mode.getproxies", dict)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", url)
        more = ["ablation", "--arms", "cnn", "--seeds", "1"] if door == "dashboard" else []
        assert cli.main(["wandb", door, *more, "--storage", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"nobody answers at {url}" in said
    assert KEY not in said


def test_cells_that_were_not_tracked_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracked_cells.write(tmp_path, 0, project=None, mode="none")
    assert sync(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["uploaded"] == []


def test_a_running_online_cell_sends_its_rows_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from capsweep.ledger import lease

    signature = tracked_cells.write(tmp_path, 0, mode="online")
    (tracked_cells.folder(tmp_path, 0) / "result.json").unlink()
    with lease.hold_lease(tmp_path / "ledger", signature):
        assert sync(tmp_path) == 0
    assert "1 cells are running" in capsys.readouterr().out


def test_offline_runs_without_a_cell_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "wandb" / "offline-run-20261121_000000-abc"
    folder.mkdir(parents=True)
    (folder / "run-abc.wandb").touch()
    assert sync(tmp_path) == 0
    assert f"wandb sync {folder}" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["--jobs=0", "--timeout=0", "--timeout=nan", "--timeout=inf"])
def test_jobs_and_seconds_must_be_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    assert sync(tmp_path, wrong) == 2
    assert "--jobs" in capsys.readouterr().err
