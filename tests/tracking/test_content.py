"""What W&B should have of a cell is read from the ledger alone, and a mark says that it has it.
Names of runs compare at a glance, and no two cells of a sweep share one.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capsweep.config import compose, package_files
from capsweep.ledger.ledger import Ledger
from capsweep.sweep import choices, expand, spec
from capsweep.tracking import content
from capsweep.tracking.content import Labels


def test_everything_of_a_finished_cell_is_in_the_ledger(
    train: Callable[..., dict[str, Any]], storage: Path
) -> None:
    ledger, signature = Ledger(storage / "ledger"), train("logger=csv")["signature"]
    cell = content.read_content(ledger, signature)
    assert (cell.status, cell.mode) == ("finished", "none")
    assert (cell.run["group"], cell.run["tags"]) == ("ablation", ["ablation", "digits"])
    assert cell.rows[-1]["train/loss"] == cell.summary["train/loss"]
    assert [(row["step"], "train/loss_step" in row) for row in cell.rows] == [
        *((1, True), (2, True), (2, False)),
        *((3, True), (4, True), (4, False)),
    ]
    assert cell.summary["params"] > 0
    assert {"test/error", "images_per_second", "gpu_hours"} <= set(cell.summary)
    assert cell.run["config"]["routing.num_iters"] == 3
    assert list(cell.pictures) == ["worst-examples.png"]

    assert not content.is_synced(storage, cell, "http://one")
    content.write_mark(storage, cell, "http://one")
    assert content.is_synced(storage, cell, "http://one")
    assert content.is_synced(storage, replace(cell, mode="online"), "http://one")
    assert not content.is_synced(storage, cell, "http://two")
    ledger.write_evaluation(signature, "segmentation.png", b"picture")
    drawn = content.read_content(ledger, signature)
    assert list(drawn.pictures) == ["segmentation.png", "worst-examples.png"]
    assert not content.is_synced(storage, drawn, "http://one")
    content.locate_mark(storage, signature).write_text("{")
    assert not content.is_synced(storage, cell, "http://one")


def test_the_source_of_digits_and_the_names_of_classes_are_columns() -> None:
    names = ["animal", "human", "airplane", "truck", "car"]
    sources = ["dataset=multimnist", "dataset.source=digits"], {"dataset.source": "digits"}
    for overrides, columns in (sources, (["dataset=smallnorb"], {content.CLASS_NAMES: names})):
        cell = compose.cell(overrides)
        assert content.describe_tracking(cell, Labels())["columns"] == columns


SWEEPS = sorted(path.stem for path in package_files.find_folder("sweeps").glob("*.yaml"))


def labels_of_sweep(sweep: str, *settings: str, **words: str) -> list[Labels]:
    loaded = choices.load_sweep(sweep, words, list(settings))
    return list(expand.make_labels(loaded, expand.expand_sweep(loaded)).values())


@pytest.mark.parametrize("sweep", SWEEPS)
def test_different_cells_of_a_sweep_have_different_names(sweep: str) -> None:
    labels = labels_of_sweep(sweep)
    assert len({one.name for one in labels}) == len(labels)
    assert max(len(one.name) for one in labels) <= content.LONGEST
    assert {(one.group, one.notes) for one in labels} == {(sweep, spec.load(sweep).question)}
    assert all(set(one.tags) >= {sweep} for one in labels)


def test_a_name_says_arm_iterations_reconstruction_and_seed() -> None:
    labels = {one.name: one for one in labels_of_sweep("ablation")}
    assert {"cnn · seed 2", "capsnet · T=1 · no recon · seed 1"} <= set(labels)
    assert {one.job_type for one in labels.values()} == {"cnn", "capsnet"}
    tags = labels["capsnet · T=3 · recon 0.0005 · seed 0"].tags
    assert tags == ("ablation", "digits", "capsnet_small", "dynamic")


def test_a_cell_of_two_rows_is_named_after_both(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        "{question: Q, base: [experiment=digits], seeds: [0], baseline: few, arms: {"
        "few: {fixed: [epochs=2]}, more: {space: {epochs: [2, 3]}}},"
        "table: {rows: [arm, epochs], columns: [dataset], metric: test/error}}"
    )
    shared, other = labels_of_sweep(str(tmp_path / "two.yaml"))
    assert shared.columns == {"row.two": "few = more · epochs=2", "axis.epochs": 2}
    assert other.columns == {"row.two": "more · epochs=3", "axis.epochs": 3}


def test_what_the_command_line_changed_is_in_names_and_tags() -> None:
    typed = "limit_batches=2", "trainer.threads=2"
    for one in labels_of_sweep("ablation", *typed, SEEDS="1", EPOCHS="1"):
        assert one.tags[:5] == ("ablation", "EPOCHS=1", "SEEDS=1", "limit_batches=2", "limited")
        assert one.name.endswith(" · epochs=1 · limit_batches=2 · seed 0")
    labels = labels_of_sweep("ablation", RECON="0.0005,0.01", EPOCHS="1,2")
    assert "capsnet · T=3 · recon 0.01 · epochs=1 · seed 0" in {one.name for one in labels}


def test_a_cell_run_by_itself_is_called_after_its_model_and_its_settings() -> None:
    overrides = ["model=capsnet_small", "optim.optimizer.lr=0.01", "logger=csv", "seed=4"]
    labels = content.make_labels(compose.cell(overrides))
    assert labels.name == "capsnet_small · T=3 · recon 0.0005 · optim.optimizer.lr=0.01 · seed 4"
    assert (labels.group, labels.job_type) == ("train", "capsnet_small")
