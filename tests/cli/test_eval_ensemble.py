"""`capsweep eval ensemble`: the seeds of a row as one network, from what they stored."""

import json
from pathlib import Path

import numpy as np
import pytest

from capsweep import cli
from capsweep.ledger.ledger import folder_of
from capsweep.statistics.examples import find_wrong
from capsweep.sweep import expand, spec
from capsweep.sweep.expand import Point

SWEEP = """\
question: Are three better than one?
base: [epochs=1, limit_batches=1, batch_size=16, trainer.accelerator=cpu, logger=csv]
seeds: [0, 1, 2]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, "model.hidden=8"]}
  capsnet: {fixed: [model.conv.channels=8, model.primary.types=2, "model.decoder.hidden=[16]"]}
table: {rows: [arm], columns: [dataset], metric: test/error}
published: {source: a paper, values: [{arm: capsnet, dataset: mnist, value: 0.0025}]}
"""
LABELS = np.array([0, 1, 2, 0])


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of two arms and three seeds."""
    path = tmp_path / "three.yaml"
    path.write_text(SWEEP)
    return path


def points(sweep: Path) -> dict[tuple[str, int], Point]:
    return {(p.arm, p.seed): p for p in expand.expand_sweep(spec.load(str(sweep)))}


def store(storage: Path, point: Point, predicted: list[int], labels: np.ndarray = LABELS) -> Path:
    """A finished cell that predicts these classes, surer of the right ones."""
    folder = storage / "ledger" / folder_of(point.cell.signature)
    folder.mkdir(parents=True)
    scores = np.eye(3, dtype=np.float32)[predicted]
    scores *= np.where(np.array(predicted) == labels.reshape(len(labels), -1)[:, 0], 1, 0.6)[
        :, None
    ]
    np.savez_compressed(folder / "predictions.npz", scores=scores, labels=labels)
    error = float(find_wrong(scores, labels).mean())
    (folder / "result.json").write_text(json.dumps({"metrics": {"test/error": error}}))
    return folder


def ensemble(sweep: Path, storage: Path, *choices: str) -> int:
    return cli.main(["eval", "ensemble", str(sweep), "--storage", str(storage), *choices])


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def test_a_table_of_members_single_error_and_ensemble_is_printed_and_written(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = points(sweep)
    for seed, predicted in enumerate([[1, 1, 2, 0], [0, 2, 2, 0], [0, 1, 0, 0]]):
        store(storage, cells["capsnet", seed], predicted)
    store(storage, cells["cnn", 1], [0, 1, 2, 1])
    assert ensemble(sweep, storage) == 0
    said = capsys.readouterr().out
    path = storage / "reports" / "three" / "ensemble.md"
    assert f"report: {path}" in said
    cnn, capsnet = rows_of(path.read_text())
    assert cnn == ["cnn", "digits", "1/3", "25.00 %", "–", "–"]
    together = "0.00 % (0 of 4) [0.00, 48.99]"
    assert capsnet == ["capsnet", "digits", "3/3", "25.00 %", together, "0.25 % (mnist)"]
    for note in ("missing: cnn · digits: seed 0: missing; seed 2: missing.", "published: a paper."):
        assert note in path.read_text()
        assert note in said


def test_json_is_alone_on_standard_output(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = points(sweep)
    for seed, predicted in enumerate([[1, 1, 2, 0], [0, 2, 2, 0], [0, 1, 0, 0]]):
        store(storage, cells["capsnet", seed], predicted)
    assert ensemble(sweep, storage, "--json") == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert (told["sweep"], told["title"]) == ("three", "ensembles")
    cnn, capsnet = told["rows"]
    assert cnn["coordinates"] == {"arm": "cnn", "dataset": "digits"}
    assert (cnn["wrong"], cnn["missing"]["1"]) == (None, "missing")
    assert (capsnet["wrong"], capsnet["total"], capsnet["single"]) == (0, 4, [0.25] * 3)
    assert "report: " in printed.err


def test_what_the_data_set_says_of_itself_is_printed_and_written(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.write_text(SWEEP.replace("base: [", "base: [dataset=affnist_like, "))
    cells = points(sweep)
    for seed in range(3):
        store(storage, cells["cnn", seed], [0, 1, 2, 0])
    assert ensemble(sweep, storage) == 0
    for said in (capsys.readouterr().out, (storage / "reports/three/ensemble.md").read_text()):
        assert said.count("affnist_like: not affNIST; ") == 1


def test_only_finished_cells_count_and_the_others_say_why_not(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = points(sweep)
    store(storage, cells["cnn", 0], [0, 1, 2, 0])
    store(storage, cells["cnn", 1], [0, 1, 2, 0])
    failed = store(storage, cells["cnn", 2], [1, 2, 0, 1])
    (failed / "result.json").unlink()
    (failed / "error.txt").write_text("OutOfMemoryError: 3 GiB too much\n\ntrace")
    assert ensemble(sweep, storage, "--arms", "cnn") == 0
    assert "seed 2: OutOfMemoryError: 3 GiB too much" in capsys.readouterr().out
    text = (storage / "reports" / "three" / "ensemble.md").read_text()
    assert rows_of(text)[0][2:5] == ["2/3", "0.00 %", "0.00 % (0 of 4) [0.00, 48.99]"]
    assert "stale: cnn · digits: 2 cells made by other code" in text


def test_choices_are_those_of_a_report(sweep: Path, storage: Path) -> None:
    cells = points(sweep)
    for seed in (0, 2):
        store(storage, cells["capsnet", seed], [0, 1, 2, 0])
    assert ensemble(sweep, storage, "--seeds", "0,2") == 0
    text = (storage / "reports" / "three" / "ensemble.md").read_text()
    assert [row[2] for row in rows_of(text)] == ["0/2", "2/2"]


@pytest.mark.parametrize("stored", [0, 1])
def test_without_two_members_there_is_no_ensemble_and_the_status_is_1(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str], stored: int
) -> None:
    for point in list(points(sweep).values())[:stored]:
        store(storage, point, [0, 1, 2, 0])
    assert ensemble(sweep, storage) == 1
    assert "has 2 finished cells" in capsys.readouterr().err
    assert not (storage / "reports").exists()


def test_cells_of_different_labels_are_named(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = points(sweep)
    first, second = cells["cnn", 0], cells["cnn", 1]
    store(storage, first, [0, 1, 2, 0])
    store(storage, second, [0, 1, 2, 0], labels=np.array([0, 1, 2, 1]))
    assert ensemble(sweep, storage) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert first.cell.signature in said
    assert second.cell.signature in said


def test_a_finished_cell_without_predictions_is_named(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    point = points(sweep)["cnn", 0]
    (store(storage, point, [0, 1, 2, 0]) / "predictions.npz").unlink()
    for seed in (0, 1):
        store(storage, points(sweep)["capsnet", seed], [0, 1, 2, 0])
    assert ensemble(sweep, storage) == 1
    said = capsys.readouterr()
    assert f"{point.cell.signature}: it has no predictions.npz" in said.err
    assert "0.00 % (0 of 4)" in " ".join(said.out.split())


def test_predictions_of_another_error_than_the_result_has_are_left_out(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store(storage, points(sweep)["cnn", 0], [0, 1, 2, 0])
    (folder / "result.json").write_text(json.dumps({"metrics": {"test/error": 0.25}}))
    for seed in (0, 1):
        store(storage, points(sweep)["capsnet", seed], [0, 1, 2, 0])
    assert ensemble(sweep, storage) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"{folder}/predictions.npz is damaged (its error is 0, and 0.25 in result.json)" in said


def test_a_wrong_choice_is_one_line_and_status_2(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", "ensemble", "nosuch", "--storage", str(storage)]) == 2
    assert capsys.readouterr().err.startswith("error: SWEEP=nosuch")


def test_real_cells_make_an_ensemble(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = [str(sweep), "--storage", str(storage), "--seeds", "2"]
    assert cli.main(["sweep", *choices, "--executor", "local"]) == 0
    capsys.readouterr()
    assert cli.main(["eval", "ensemble", *choices]) == 0
    rows = rows_of((storage / "reports" / "three" / "ensemble.md").read_text())
    assert [row[2] for row in rows] == ["2/2", "2/2"]
    errors = [
        json.loads(path.read_text())["metrics"]["test/error"]
        for path in sorted(storage.glob("ledger/*/*/result.json"))
    ]
    singles = sorted(float(row[3].split()[0]) for row in rows)
    assert sum(singles) / 2 == pytest.approx(100 * sum(errors) / 4, abs=0.01)
    assert "stale" not in capsys.readouterr().out


def test_another_metric_than_the_error_is_refused(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ensemble(sweep, storage, "--metric", "test/loss") == 2
    assert "METRIC: an ensemble is judged by its test error" in capsys.readouterr().err
