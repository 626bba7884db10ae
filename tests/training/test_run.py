"""One cell, from configuration to the ledger."""

import gc
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from capsweep.config import places, validation
from capsweep.config.cell import Cell, signature
from capsweep.data.batches import TrainLoader
from capsweep.ledger.ledger import folder_of
from capsweep.training import build
from capsweep.training.module import CapsuleTask
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks


@pytest.fixture
def ran(small_cell: Callable[..., Cell]) -> tuple[Cell, dict, Path]:
    """A finished cell, its result and its folder."""
    cell = small_cell()
    here = places.resolve(cell.config["places"])
    result = run(cell, here)
    return cell, result, Path(here.ledger) / folder_of(cell.signature)


def test_the_cell_directory_holds_what_the_design_promises(
    ran: tuple[Cell, dict, Path],
) -> None:
    assert sorted(path.name for path in ran[2].iterdir()) == [
        "config.yaml",
        "evals",
        "metrics.csv",
        "metrics.jsonl",
        "predictions.npz",
        "provenance.json",
        "result.json",
        "weights.ckpt",
    ]


def test_the_written_configuration_has_the_signature_of_the_folder(
    ran: tuple[Cell, dict, Path],
) -> None:
    written = yaml.safe_load((ran[2] / "config.yaml").read_text())
    assert signature(written) == ran[0].signature == ran[2].name


def test_test_error_is_that_of_the_predictions(ran: tuple[Cell, dict, Path]) -> None:
    _, result, path = ran
    with np.load(path / "predictions.npz", allow_pickle=False) as stored:
        wrong = np.mean(stored["scores"].argmax(axis=1) != stored["labels"])
        assert stored["scores"].shape == (360, 10)
    assert result["metrics"]["test/error"] == pytest.approx(wrong, abs=1e-12)


def test_metrics_have_a_row_per_epoch_and_the_last_is_the_result(
    ran: tuple[Cell, dict, Path],
) -> None:
    _, result, path = ran
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [0, 1]
    assert [row["step"] for row in rows] == [2, 4]
    last = {key: value for key, value in rows[-1].items() if key.startswith(("train/", "val/"))}
    assert last.items() <= result["metrics"].items()
    assert rows[0]["train/loss"] != rows[1]["train/loss"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["loss.reconstruction.weight=0"],
        ["loss.reconstruction.weight=0.0005", "dataset.validation=0"],
        ["dataset=multimnist", "dataset.source=digits", "loss.reconstruction.weight=0.0005"],
        ["dataset=multimnist", "dataset.source=digits", "loss.reconstruction.weight=0"],
    ],
    ids=" ".join,
)
def test_the_metrics_that_a_plan_knows_are_those_that_a_cell_measures(
    overrides: list[str], small_cell: Callable[..., Cell]
) -> None:
    cell = small_cell("debug=fast", "model=capsnet_tiny", *overrides)
    measures = run(cell, places.resolve(cell.config["places"]))["metrics"]
    assert set(measures) == set(validation.list_metrics(cell.config))


def test_the_weights_load_without_pickle_and_give_the_predictions(
    ran: tuple[Cell, dict, Path],
) -> None:
    cell, _, path = ran
    network = build.build_network(cell.config)
    network.load_state_dict(torch.load(path / "weights.ckpt", weights_only=True))
    test = build.build_reader(cell.config).read("").test
    scores = network(test.images_NCHW.float() / 255).scores_BN.detach().numpy()
    with np.load(path / "predictions.npz", allow_pickle=False) as stored:
        np.testing.assert_allclose(scores, stored["scores"], atol=1e-5)


def test_provenance_names_code_data_hardware_and_command(ran: tuple[Cell, dict, Path]) -> None:
    cell, _, path = ran
    provenance = json.loads((path / "provenance.json").read_text())
    assert provenance["command"] == cell.command
    assert provenance["fingerprint"] == cell.config["dataset"]["reader"]["sha256"]
    assert provenance["versions"]["torch"] == torch.__version__
    assert provenance["implementations"] == {
        "routing": "fast",
        "convolutions": "channels last",
        "optimizer": "fused",
        "compile": None,
        "tf32": False,
    }
    assert provenance["hardware"]["cores"] >= 1


def test_a_finished_cell_is_not_run_again(
    small_cell: Callable[..., Cell], ran: tuple[Cell, dict, Path]
) -> None:
    cell, result, path = ran
    before = (path / "result.json").stat().st_mtime_ns
    assert run(cell, places.resolve(cell.config["places"])) == result
    assert (path / "result.json").stat().st_mtime_ns == before


def test_rerun_always_runs_it_again_to_the_same_numbers(
    small_cell: Callable[..., Cell], ran: tuple[Cell, dict, Path]
) -> None:
    again = small_cell("rerun=always")
    assert again.signature == ran[0].signature
    repeated = run(again, places.resolve(again.config["places"]))
    assert repeated["metrics"] == ran[1]["metrics"]
    assert repeated["seconds"] != ran[1]["seconds"]


def test_a_worker_keeps_nothing_of_a_cell_that_ended(ran: tuple[Cell, dict, Path]) -> None:
    kept = [thing for thing in gc.get_objects() if type(thing) in (CapsuleTask, TrainLoader)]
    assert kept == []


def test_without_held_out_examples_there_is_no_validation(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("dataset.validation=0")
    result = run(cell, places.resolve(cell.config["places"]))
    assert {key.split("/")[0] for key in result["metrics"]} == {"train", "test"}


def test_bf16_runs_with_finite_numbers(small_cell: Callable[..., Cell]) -> None:
    cell = small_cell("precision=bf16-mixed")
    result = run(cell, places.resolve(cell.config["places"]))
    assert all(np.isfinite(value) for value in result["metrics"].values())


def test_listeners_hear_every_epoch_after_it_is_written(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell()
    here = places.resolve(cell.config["places"])
    metrics = Path(here.ledger) / folder_of(cell.signature) / "metrics.jsonl"
    heard: list[tuple[int, int]] = []

    def hear(row: dict) -> None:
        heard.append((row["epoch"], len(metrics.read_text().splitlines())))

    run(cell, here, RunHooks(on_epoch=hear))
    assert heard == [(0, 1), (1, 2)]
