"""`ledger verify`: files that are not as they were stored, without a digest, or of another cell."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import reported_cells
import yaml

from capsweep import cli
from capsweep.config import compose
from capsweep.ledger import upkeep
from capsweep.ledger.ledger import Entry, Ledger, folder_of
from capsweep.report import table


def test_a_result_without_a_digest_is_a_fault_and_counts_as_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    reported_cells.sign(reported_cells.finish(tmp_path / "ledger", points[0], 0.4))
    command = ["ledger", "verify", f"STORAGE={tmp_path}"]
    assert cli.main(command) == 0
    assert "1 cell, 1 of them finished: 0 faults" in capsys.readouterr().out
    path = reported_cells.finish(tmp_path / "ledger", points[1], 0.4) / "result.json"
    path.write_text(json.dumps({"metrics": {}}))
    assert cli.main(command) == 1
    printed = capsys.readouterr().out
    assert f"{path} is damaged (it was altered: its digest is absent or wrong)" in printed
    assert "2 cells, 1 of them finished: 1 fault" in printed


def test_a_failed_cell_is_no_fault(tmp_path: Path) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    folder = tmp_path / folder_of(points[0].cell.signature)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(points[0].cell.science))
    (folder / "error.txt").write_text("ValueError: a bug\n\ntrace\n")
    assert list(upkeep.find_faults(Ledger(tmp_path), folder.name)) == []


def test_the_folder_of_another_cell_under_a_signature_is_found_and_not_counted(
    tmp_path: Path,
) -> None:
    sweep, points = reported_cells.small_sweep(tmp_path)
    made = reported_cells.PROVENANCE | {"science": points[0].cell.science}
    folder = reported_cells.finish(tmp_path, points[0], 0.4)
    (folder / "provenance.json").write_text(json.dumps(made))
    reported_cells.sign(folder)
    copy = tmp_path / folder_of(points[1].cell.signature)
    shutil.copytree(folder, copy)
    answer = table.build_table(sweep, points, Ledger(tmp_path))
    assert [*answer.rows[0].values[0].by_seed] == [0]
    (cause,) = answer.rows[0].values[0].causes
    assert f"it belongs to cell {folder.name}" in cause
    faults = " ".join(upkeep.find_faults(Ledger(tmp_path), copy.name))
    for name in ("result.json", "config.yaml", "provenance.json"):
        assert f"{name} is damaged (" in faults


def test_arrays_that_are_none_are_faults(tmp_path: Path) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    folder = reported_cells.finish(tmp_path, points[0], 0.4)
    (folder / "evals").mkdir()
    np.savez(folder / "evals" / "whole.npz", caption=np.array("text"))
    np.savez(folder / "predictions.npz", scores=np.eye(4), other=np.arange(4))
    reported_cells.sign(folder)
    (folder / "evals" / "torn.npz").write_bytes(b"PK")
    torn, predictions = upkeep.find_faults(Ledger(tmp_path), folder.name)
    assert f"{folder}/evals/torn.npz is damaged (" in torn
    assert f"{folder}/predictions.npz is damaged (it has no valid array labels)" in predictions


@pytest.mark.parametrize(
    ("more", "accuracy", "status"),
    [(0, None, "stale"), (-1, None, "failed"), (-1, 0.9, "stale"), (9999, 0.9, "failed")],
)
def test_a_result_of_other_epochs_is_damaged_unless_an_accuracy_ends_the_cell_early(
    tmp_path: Path, more: int, accuracy: float | None, status: str
) -> None:
    cell = compose.cell([])
    epochs = cell.config["epochs"] + more
    config = {**cell.config, "stop_accuracy": accuracy}
    judged = Ledger(tmp_path).judge(cell.signature, Entry("done", {"epochs": epochs}), config)
    assert judged.status == status
    where = f"result.json is damaged (it has {epochs} epochs, but its configuration says "
    assert (where in str(judged.cause)) is (status == "failed")
