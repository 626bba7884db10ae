"""What a sweep says and returns when cells fail, merge or are missing (local executor, no Ray)."""

import json
from pathlib import Path

import pytest

from capsweep import cli


@pytest.fixture
def diverging(small_sweep: Path, tmp_path: Path) -> Path:
    """A sweep whose CNN arm diverges to NaN and whose CapsNet arm has one place."""
    text = small_sweep.read_text().replace('"model.hidden=8"', '"optim.optimizer.lr=1.0e+30"')
    text = text.replace("[1, 3]", "[1]").replace("[0, 0.0005]", "[0]")
    path = tmp_path / "diverging.yaml"
    path.write_text(text)
    return path


def local(sweep: Path, storage: Path, *more: str) -> int:
    """`capsweep sweep` in this process."""
    choices = ["--executor", "local", "--storage", str(storage), "logger=csv"]
    return cli.main(["sweep", str(sweep), *choices, *more])


def test_the_others_finish_the_gap_has_its_cause_and_the_status_is_1(
    diverging: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert local(diverging, storage) == 1
    said = capsys.readouterr().out
    table = (storage / "reports" / "diverging" / "table.md").read_text()
    assert "0/2 seeds; failed" in table
    assert "NonFiniteLossError: the loss was not finite at step" in table
    assert "% (2)" in table
    assert "2 of 4 cells failed" in said


@pytest.mark.slow
def test_neither_finished_cells_nor_failures_that_would_repeat_are_run_again(
    diverging: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local(diverging, storage)
    finished = {path: path.stat().st_mtime_ns for path in storage.rglob("result.json")}
    assert len(finished) == 2
    capsys.readouterr()
    assert local(diverging, storage) == 1
    said = capsys.readouterr().out
    assert "4 cells: 2 done, 0 missing, 2 failed" in said
    assert "2 cells failed before, in a way that the same code repeats" in said
    assert "FAILED" not in said
    assert {path: path.stat().st_mtime_ns for path in storage.rglob("result.json")} == finished


@pytest.mark.slow
def test_equivalent_places_run_once_and_fill_both_rows(
    small_sweep: Path, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = small_sweep.read_text().replace("[1, 3]", "[1]").replace("seeds: [0, 1]", "seeds: [0]")
    same = "twin: {fixed: [model.conv.channels=8, model.primary.types=2, routing.num_iters=1, "
    same += 'loss.reconstruction.weight=0, "model.decoder.hidden=[7]"]}'
    path = tmp_path / "twins.yaml"
    path.write_text(text.replace("table:", f"  {same}\ntable:"))
    assert local(path, storage) == 0
    assert "3 cells: 0 done, 3 missing, 0 failed, 1 equivalent" in capsys.readouterr().out
    table = (storage / "reports" / "twins" / "table.md").read_text()
    twin = next(line for line in table.splitlines() if line.startswith("| twin"))
    original = next(line for line in table.splitlines() if line.startswith("| capsnet | 1 | 0 |"))
    assert twin.split("|")[2:] == original.split("|")[2:]


@pytest.mark.slow
def test_a_damaged_result_is_run_again(
    diverging: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local(diverging, storage)
    damaged = next(storage.rglob("result.json"))
    whole = damaged.read_text()
    damaged.write_text(whole[: len(whole) // 2])
    capsys.readouterr()
    cli.main(["report", str(diverging), "--storage", str(storage)])
    assert "is damaged" in capsys.readouterr().out
    local(diverging, storage)
    assert json.loads(damaged.read_text())["metrics"] == json.loads(whole)["metrics"]


def test_a_metric_nobody_measures_is_named(
    diverging: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diverging.write_text(diverging.read_text().replace("metric: test/error", "metric: test/eror"))
    assert local(diverging, storage) == 2
    assert "table.metric: test/eror is not measured" in capsys.readouterr().err


def test_plan_runs_nothing_and_writes_nothing(
    small_sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", str(small_sweep), "--storage", str(storage)]) == 0
    said = capsys.readouterr().out
    assert "10 cells: 0 done, 10 missing, 0 failed" in said
    assert not storage.exists()


def test_planning_needs_no_data(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choices = ["--dataset", "mnist", "--data-dir", "/nowhere", "--storage", str(storage)]
    assert cli.main(["plan", "ablation", *choices]) == 0
    assert "15 cells" in capsys.readouterr().out
