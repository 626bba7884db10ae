"""Results that say other than their predictions, have no digests, or are of another cell."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reported_cells
import yaml

from capsweep import cli
from capsweep.ledger import verify
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import table
from capsweep.sweep.expand import Point

SCORES = np.eye(4, dtype=np.float32)[[0, 1, 2, 0, 0]]
LABELS = np.array([0, 1, 2, 3, 3])  # two of five are wrong


def write_cell(ledger: Path, point: Point, error: float, **metrics: float) -> Path:
    """A finished cell with its configuration and its predictions, of which two of five err."""
    folder = reported_cells.finish(ledger, point, error, metrics={"test/error": error, **metrics})
    (folder / "config.yaml").write_text(yaml.safe_dump(point.cell.science))
    np.savez(folder / "predictions.npz", scores=SCORES, labels=LABELS)
    return folder


def test_an_error_that_the_predictions_do_not_have_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    ledger = tmp_path / "ledger"
    reported_cells.sign(write_cell(ledger, points[0], 0.4))
    command = ["ledger", "verify", f"STORAGE={tmp_path}"]
    assert cli.main(command) == 0
    assert "1 cell, 1 of them finished: 0 faults" in capsys.readouterr().out
    folder = write_cell(ledger, points[1], 0.01)
    assert cli.main(command) == 1
    printed = capsys.readouterr().out
    why = "test/error is 0.4000 by it, 0.0100 by result.json"
    assert f"{folder}/predictions.npz is damaged ({why})" in printed
    assert f"{folder.name}: no digests; nothing proves its result" in printed
    assert "2 cells, 2 of them finished (1 without digests): 1 fault" in printed


def test_of_images_of_two_classes_both_error_rates_are_compared() -> None:
    scores = np.array([[3, 2, 1, 0], [3, 2, 1, 0], [0, 1, 2, 3]], dtype=np.float32)
    labels = np.array([[0, 1], [1, 2], [1, 0]])
    measured = verify.measure_errors(scores, labels)
    assert measured == pytest.approx({"test/error": 2 / 3, "test/at_least_one": 2 / 3})


def test_equal_scores_may_have_been_taken_in_either_order(tmp_path: Path) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    for point, error, faults in ((points[0], 0.4, 0), (points[1], 0.6, 0), (points[2], 1.0, 1)):
        folder = write_cell(tmp_path, point, error)
        scores = np.where(np.arange(5)[:, None] == 2, np.float32(0.5), SCORES)  # one of five
        np.savez(folder / "predictions.npz", scores=scores, labels=LABELS)
        found = list(verify.find_faults(Ledger(tmp_path), folder.name))
        assert len(found) == faults, found


def test_a_failed_cell_is_no_fault(tmp_path: Path) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    folder = tmp_path / folder_of(points[0].cell.signature)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(points[0].cell.science))
    (folder / "error.txt").write_text("ValueError: a bug\n\ntrace\n")
    assert list(verify.find_faults(Ledger(tmp_path), folder.name)) == []


def test_predictions_that_are_none_are_a_fault(tmp_path: Path) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    folder = write_cell(tmp_path, points[0], 0.4)
    np.savez(folder / "predictions.npz", scores=SCORES * np.nan, labels=LABELS)
    (fault,) = verify.find_faults(Ledger(tmp_path), folder.name)
    assert "predictions.npz is damaged" in fault


@pytest.mark.parametrize("kept", [("config.yaml",), ("provenance.json",), ("metrics.jsonl",)])
def test_the_folder_of_another_cell_under_a_signature_is_found_by_a_report(
    kept: tuple[str, ...], tmp_path: Path
) -> None:
    sweep, points = reported_cells.small_sweep(tmp_path)
    made = reported_cells.PROVENANCE | {"science": points[0].cell.science}
    folder = write_cell(tmp_path, points[0], 0.4)
    (folder / "provenance.json").write_text(json.dumps(made))
    copy = tmp_path / folder_of(points[1].cell.signature)
    shutil.copytree(folder, copy)
    for name in ("config.yaml", "provenance.json"):
        if name not in kept:
            (copy / name).unlink()
    answer = table.build_table(sweep, points, Ledger(tmp_path))
    faults = list(verify.find_faults(Ledger(tmp_path), copy.name))
    assert any("config.yaml is damaged (" in fault for fault in faults)
    is_counted = copy.name not in json.dumps([*answer.rows[0].values[0].causes])
    assert is_counted is (kept != ("config.yaml",))


def test_a_file_of_an_evaluation_that_is_no_array_is_a_fault(tmp_path: Path) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    folder = write_cell(tmp_path, points[0], 0.4)
    (folder / "evals").mkdir()
    np.savez(folder / "evals" / "whole.npz", caption=np.array("text"))
    (folder / "evals" / "torn.npz").write_bytes(b"PK")
    (fault,) = verify.find_faults(Ledger(tmp_path), folder.name)
    assert f"{folder}/evals/torn.npz is damaged (" in fault


def test_a_result_of_fewer_epochs_is_damaged_unless_an_accuracy_ends_the_cell(
    tmp_path: Path,
) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    config, ledger = points[0].cell.config, Ledger(tmp_path)
    write_cell(tmp_path, points[0], 0.4)
    entry = ledger.entry(points[0].cell.signature)
    entry = replace(entry, result={**(entry.result or {}), "epochs": config["epochs"] - 1})
    for accuracy, status in ((None, "failed"), (0.9, "stale")):
        judged = ledger.judge(
            points[0].cell.signature, entry, {**config, "stop_accuracy": accuracy}
        )
        assert judged.status == status


def test_a_result_of_more_epochs_than_were_asked_for_is_damaged(tmp_path: Path) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    cell, ledger = points[0].cell, Ledger(tmp_path)
    write_cell(tmp_path, points[0], 0.4)
    path = tmp_path / folder_of(cell.signature) / "result.json"
    result = json.loads(path.read_text())
    for epochs, status in ((cell.config["epochs"], "stale"), (10_000, "failed")):
        path.write_text(json.dumps(result | {"epochs": epochs}))
        entry = ledger.entries_of([cell])[cell.signature]
        assert entry.status == status
    assert f"{path} is damaged (epochs: 10000 of a cell of " in str(entry.cause)
