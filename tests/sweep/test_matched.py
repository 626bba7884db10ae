"""Arms that stop where the baseline is as good: their accuracy is read from its cells."""

from collections.abc import Callable
from pathlib import Path

import pytest
import reported_cells
from reported_cells import finish

from capsweep import cli
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.report import formatted_table, render, table
from capsweep.sweep import choices, drive, expand
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

TEXT = """\
question: Which is better at equal accuracy?
base: [dataset=digits, epochs=2, batch_size=64, logger=csv, limit_batches=2]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_tiny]}
  capsnet: {matched: true, fixed: [model=capsnet_tiny, loss.reconstruction.weight=0]}
  free: {fixed: [model=capsnet_tiny, loss.reconstruction.weight=0]}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""
Loaded = Callable[..., tuple[Sweep, list[Point]]]


@pytest.fixture
def load_matched(tmp_path: Path) -> Loaded:
    """The sweep and its points, with what is typed."""

    def load(*overrides: str, text: str = TEXT) -> tuple[Sweep, list[Point]]:
        path = tmp_path / "equal.yaml"
        path.write_text(text)
        sweep = choices.load_sweep(str(path), {"STORAGE": str(tmp_path)}, overrides)
        return sweep, expand.expand_sweep(sweep)

    return load


def finish_cell(tmp_path: Path, point: Point, error: float, familiar: float) -> None:
    """A finished cell of such errors."""
    metrics = {"test/error": error, "val/error": familiar}
    finish(tmp_path / "ledger", point, error, reported_cells.rows([0.4, 0.2]), metrics=metrics)


def list_goals(points: list[Point], arm: str) -> list[float | None]:
    """The accuracies at which an arm's cells stop, by seed."""
    return [point.cell.config["stop_accuracy"] for point in points if point.arm == arm]


def test_each_cell_stops_at_the_accuracy_of_the_baselines_cell_of_its_seed(
    load_matched: Loaded, tmp_path: Path
) -> None:
    sweep, points = load_matched()
    assert [point.waits for point in points] == [False, False, True, True, False, False]
    finish_cell(tmp_path, points[0], 0.2, familiar=0.037)
    settled = expand.set_accuracies(sweep, points)
    assert list_goals(settled, "capsnet") == [0.963, 1.0]
    assert [point.waits for point in settled] == [False, False, False, True, False, False]
    finish_cell(tmp_path, points[1], 0.2, familiar=0.041)
    settled = expand.set_accuracies(sweep, points)
    assert list_goals(settled, "capsnet") == [0.963, 0.959]
    assert list_goals(settled, "free") == list_goals(settled, "cnn") == [None, None]
    assert not any(point.waits for point in settled)
    assert settled[2].cell.signature != points[2].cell.signature
    assert sum("stop_accuracy" in text for text in settled[2].cell.overrides) == 1


def test_what_cannot_be_matched_is_refused(load_matched: Loaded, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"arms\.cnn\.matched: not allowed for the"):
        load_matched(text=TEXT.replace("cnn: {fixed", "cnn: {matched: true, fixed"))
    sweep, points = load_matched()
    with pytest.raises(ConfigError, match=r"arms\.capsnet\.matched: .*cnn has no cell of this"):
        expand.set_accuracies(sweep, points[1:])
    with pytest.raises(ConfigError, match=r"^RERUN=stale: .* are matched to finished cells of "):
        expand.check_rerun(*load_matched("rerun=stale"))
    finish(tmp_path / "ledger", points[0], 0.2, reported_cells.rows([0.4, 0.2]))
    with pytest.raises(ConfigError, match=r"the cell of cnn · seed 0 has no val/error"):
        expand.set_accuracies(sweep, points)


def test_the_table_shows_the_validation_error_that_each_row_ended_at(
    load_matched: Loaded, tmp_path: Path
) -> None:
    sweep, points = load_matched()
    for point, familiar in zip(points[:2], (0.037, 0.039), strict=True):
        finish_cell(tmp_path, point, 0.2, familiar)
    settled = expand.set_accuracies(sweep, points)
    finish_cell(tmp_path, settled[2], 0.135, 0.036)
    answer = table.build_table(sweep, settled, Ledger(tmp_path / "ledger"))
    written = formatted_table.format_table(answer)
    assert written.header[2] == "val/error"
    assert [row[2].text for row in written.rows] == [
        "3.80 ± 0.14 % (2)", "3.60 % (1)", "–",
    ]  # fmt: skip
    assert any(note.startswith("val/error is that of") for note in written.notes)
    assert "| 3.60 % (1) |" in render.render_markdown(answer)


def test_one_command_runs_the_baseline_and_then_what_waits_for_it(
    load_matched: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_matched()
    # Any accuracy is reached by the second epoch where it is that of an untrained network, or less.
    words = [str(tmp_path / "equal.yaml"), "EXECUTOR=local", f"STORAGE={tmp_path}"]
    typed = ["optim.optimizer.lr=1e-9", "optim.schedule.floor=0", "SEEDS=1"]
    cli.main(["sweep", *words, *typed])
    ledger = Ledger(tmp_path / "ledger")
    found = {signature: ledger.read_science(signature) for signature in ledger.list_signatures()}
    by_model = {(s["model"]["name"], s["stop_accuracy"]): key for key, s in found.items() if s}
    metrics = ledger.read_result(by_model["cnn_tiny", None])["metrics"]
    accuracy = round(1 - metrics["val/error"], expand.ACCURACY_DIGITS)
    models = {("cnn_tiny", None), ("capsnet_tiny", None), ("capsnet_tiny", accuracy)}
    assert by_model.keys() == models
    output = capsys.readouterr().out
    assert output.index("cnn · seed 0:") < output.index("capsnet · seed 0:")
    cli.main(["plan", *words[:1], *words[2:], *typed])
    assert "0 missing" in capsys.readouterr().out


def test_what_waits_for_a_baseline_that_failed_is_told_and_not_run(
    load_matched: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_matched(text=TEXT.replace("model=cnn_tiny", "model=cnn_tiny, optim.optimizer.lr=1e18"))
    words = [str(tmp_path / "equal.yaml"), "EXECUTOR=local", f"STORAGE={tmp_path}"]
    assert cli.main(["sweep", *words, "SEEDS=1"]) == drive.FAILED
    output = capsys.readouterr().out
    assert "1 cell left: they need the accuracy of a cell of cnn" in output
    assert len(Ledger(tmp_path / "ledger").list_signatures()) == 2
