"""`make wandb-sync`: nothing to do, or a login is needed, in one line."""

from pathlib import Path

import pytest

from capsweep import cli


def test_without_offline_runs_there_is_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["wandb-sync", "--storage", str(tmp_path)]) == 0
    assert "no offline runs" in capsys.readouterr().out


def test_runs_that_wait_need_a_login(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wandb" / "offline-run-20261121_000000-abc").mkdir(parents=True)
    assert cli.main(["wandb-sync", "--storage", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "1 offline runs wait" in said
    assert "wandb login" in said
