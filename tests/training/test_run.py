"""One cell, from configuration to the ledger."""

import gc
import json
import os
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from trained_cells import find_folder, read_outputs, read_provenance, read_rows, train

from capsweep.config import compose
from capsweep.config.cell import Cell, hash_science
from capsweep.data.batches import Batch, EvaluationParts, TrainLoader
from capsweep.errors import NonFiniteLossError
from capsweep.ledger import causes
from capsweep.training import RunHooks, StopFlag, build, module
from capsweep.training.module import CapsuleTask
from capsweep.training.step import Losses


@pytest.fixture
def ran(small_cell: Callable[..., Cell]) -> tuple[Cell, dict, Path]:
    """A finished cell, its result and its folder."""
    cell = small_cell()
    return cell, train(cell), find_folder(cell)


def test_the_cell_directory_holds_what_the_design_promises(
    ran: tuple[Cell, dict, Path],
) -> None:
    cell, result, path = ran
    names = ("config.yaml", "evals", "metrics.jsonl", "predictions.npz")
    more = ("provenance.json", "result.json", "resume.ckpt", "steps.jsonl", "weights.ckpt")
    found = {file.name for file in path.iterdir()} - {"changes.diff"}  # only of a changed checkout
    assert found == {*names, *more}
    written = yaml.safe_load((path / "config.yaml").read_text())
    assert hash_science(written) == cell.signature == path.name
    first, last = read_rows(cell)
    assert [(row["epoch"], row["step"]) for row in (first, last)] == [(0, 2), (1, 4)]
    known = {key: value for key, value in last.items() if key.startswith(("train/", "val/"))}
    assert known.items() <= result["metrics"].items()
    assert first["train/loss"] != last["train/loss"]


def test_points_inside_an_epoch_are_the_mean_losses_of_the_steps_between_them(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("logger.every_n_steps=2", "limit_batches=3")
    train(cell)
    points, rows = read_rows(cell, "steps.jsonl"), read_rows(cell)
    assert [point["step"] for point in points] == [2, 3, 5, 6]
    assert [point["epoch"] for point in points] == pytest.approx([2 / 3, 1, 5 / 3, 2])
    losses = [point["train/loss_step"] for point in points]
    means = [(2 * first + last) / 3 for first, last in (losses[:2], losses[2:])]
    assert means == pytest.approx([row["train/loss"] for row in rows])
    assert points[-1]["lr"] == rows[-1]["lr"]


def test_the_weights_load_without_pickle_and_give_the_predictions_and_their_error(
    ran: tuple[Cell, dict, Path],
) -> None:
    cell, result, _ = ran
    weights, stored = read_outputs(cell)
    network = build.build_network(cell.config)
    network.load_state_dict(weights)
    splits = build.build_reader(cell.config).read("")
    assert result["data"] == {"train": splits.train.digest, "test": splits.test.digest}
    test = splits.test
    scores = network(test.images_NCHW.float() / 255).scores_BN.detach().numpy()
    np.testing.assert_allclose(scores, stored["scores"], atol=1e-5)
    wrong = np.mean(stored["scores"].argmax(axis=1) != stored["labels"])
    assert result["metrics"]["test/error"] == pytest.approx(wrong, abs=1e-12)


def test_provenance_names_code_data_hardware_and_command(ran: tuple[Cell, dict, Path]) -> None:
    cell, result, path = ran
    provenance = read_provenance(cell)
    typed = [text for text in cell.overrides if not text.startswith("places.")]
    assert provenance["command"] == shlex.join(["capsweep", "train", *typed])
    assert str(path.parents[2]) not in json.dumps(provenance)
    assert provenance["fingerprint"] == cell.config["dataset"]["reader"]["sha256"]
    assert provenance["versions"]["torch"] == torch.__version__
    assert provenance["implementations"] == {
        "routing": "auto: fast",
        "convolutions": "auto, channels last",
        "optimizer": "fused",
        "tf32": False,
        "device": "cpu",
        "threads": 1,
    }
    assert provenance["hardware"]["cores"] >= 1
    assert provenance["graphs"] == "off: no GPU"
    assert result["gpu_hours"] == 0.0
    assert result["test_sha256"] is None  # images of files are known by those


def test_a_finished_cell_runs_again_when_it_is_asked_for_and_to_the_same_numbers(
    small_cell: Callable[..., Cell], ran: tuple[Cell, dict, Path]
) -> None:
    cell, result, path = ran
    before = (path / "result.json").stat().st_mtime_ns
    assert train(cell) == result
    assert (path / "result.json").stat().st_mtime_ns == before
    again = small_cell("rerun=always")
    assert again.signature == cell.signature
    repeated = train(again)
    assert repeated["metrics"] == result["metrics"]
    assert repeated["seconds"] != result["seconds"]
    # A worker keeps nothing of a cell that ended.
    assert not [thing for thing in gc.get_objects() if type(thing) in (CapsuleTask, TrainLoader)]


def test_hooks_get_every_epoch_after_it_is_written(small_cell: Callable[..., Cell]) -> None:
    cell, counts = small_cell(), []
    train(cell, RunHooks(on_epoch=lambda row: counts.append((row["epoch"], len(read_rows(cell))))))
    assert counts == [(0, 1), (1, 2)]


def test_a_growing_margin_is_in_the_rows_as_it_is_after_each_epoch(
    small_cell: Callable[..., Cell],
) -> None:
    spread = ["loss.classification.first=0.2", "loss.classification.last=0.8"]
    for cell, margins in (
        (small_cell("loss=spread", "epochs=3", *spread), [0.4, 0.6, 0.8]),
        (small_cell("epochs=1"), [None]),
    ):
        train(cell)
        assert [row.get("margin") for row in read_rows(cell)] == pytest.approx(margins)


def test_a_cell_that_is_told_to_end_while_it_is_tested_is_finished(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = small_cell("model=cnn_small", "model.hidden=8", "epochs=1", "dataset.validation=100")
    stop_flag, step = StopFlag(), CapsuleTask.test_step

    def signal_test(self: CapsuleTask, batch, batch_idx: int) -> None:
        if batch_idx == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        step(self, batch, batch_idx)

    monkeypatch.setattr(module, "EVALUATION_BATCH", 100)  # two of them are tested
    monkeypatch.setattr(CapsuleTask, "test_step", signal_test)
    before = signal.getsignal(signal.SIGTERM)
    with stop_flag.handling_sigterm():
        assert train(cell, RunHooks(stop_flag=stop_flag))["status"] == "finished"
    assert stop_flag.is_set
    assert signal.getsignal(signal.SIGTERM) is before


ALLOCATOR = "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried ..."), RuntimeError(ALLOCATOR)]
)
def test_a_test_for_which_memory_is_short_goes_on_with_fewer_images_to_the_same_numbers(
    error: RuntimeError,
    small_cell: Callable[..., Cell],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    overrides = ("epochs=1", "batch_size=80", "dataset.validation=100", "limit_batches=2")
    enough, short = (small_cell(*overrides, f"places.storage={tmp_path / n}") for n in "ab")
    expected = train(enough)
    at_once, make = [], build.build_network

    def fail_above_60(network: torch.nn.Module, images: tuple[torch.Tensor]) -> None:
        at_once.append(len(images[0]))
        if not network.training and len(images[0]) > 60:
            raise error

    def build_short(*arguments: Any) -> torch.nn.Module:
        network = make(*arguments)
        network.register_forward_pre_hook(fail_above_60)
        return network

    monkeypatch.setattr(build, "build_network", build_short)
    result = train(short)
    assert result["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
    (_, found), (_, stored) = (read_outputs(cell) for cell in (short, enough))
    np.testing.assert_array_equal(found["labels"], stored["labels"])
    np.testing.assert_allclose(found["scores"], stored["scores"], atol=1e-5)
    # Two training steps; the validation finds how many it can take, and the test knows it.
    assert at_once == [80, 80, 100, 50, 50, *[45] * 8]
    said = "memory ran out while 100 examples were evaluated together; from now on 50 are"
    assert [line for line in capsys.readouterr().err.splitlines() if "memory" in line] == [said]


def test_another_fault_and_an_image_that_has_no_room_alone_are_raised() -> None:
    batch = Batch(torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64))
    for text, batch_size in (("another fault", 80), (ALLOCATOR, 1)):

        def fail(part: Batch, text: str = text) -> None:
            raise RuntimeError(text)

        with pytest.raises(RuntimeError, match=re.escape(text)):
            list(EvaluationParts(batch_size).evaluate(batch, fail))


@pytest.fixture
def task() -> CapsuleTask:
    return CapsuleTask(torch.nn.Identity(), None, None, compose.cell([]).config)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_first_bad_step_since_the_last_check_is_named(task: CapsuleTask, bad: float) -> None:
    task.losses = [torch.tensor(1e30), torch.tensor(0.5)]
    assert task.average_losses(102) == pytest.approx(5e29)
    task.losses = [torch.tensor(loss) for loss in (1.0, bad, 0.5, bad)]
    with pytest.raises(NonFiniteLossError, match=r"step 103 \(epoch 0\)"):
        task.average_losses(106)


def test_a_metric_that_is_no_number_is_named_with_its_epoch(task: CapsuleTask) -> None:
    losses = Losses(torch.tensor(float("nan")), None, torch.zeros(3, 2))
    batch = Batch(torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.long))
    task.metrics["val"].update(losses, batch)
    with pytest.raises(NonFiniteLossError, match=r"^val/loss was nan in epoch 0; ") as caught:
        task.on_validation_epoch_end()
    assert causes.classify_cause(causes.describe_cause(caught.value)) == causes.CauseKind.NOT_FINITE


def test_a_diverging_cell_fails_with_its_cause_and_no_result(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("model=cnn_small", "optim.optimizer.lr=1e18")
    with pytest.raises(NonFiniteLossError, match="step"):
        train(cell)
    error = (find_folder(cell) / "error.txt").read_text()
    assert error.startswith("NonFiniteLossError: the loss was not")
    assert not (find_folder(cell) / "result.json").exists()
