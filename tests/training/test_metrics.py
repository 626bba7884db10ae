"""What is measured of a split: errors of images that show one class or several, segmentation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor

from capsweep.data.batches import Batch
from capsweep.training.objective import (
    SMALLEST_INTENSITY,
    Losses,
    SplitMetrics,
    is_found,
    measure_overlap,
)

CLASSES = 4


def scores(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def losses_of(scores_BN: Tensor, total: float = 1.0, drawn: Tensor | None = None) -> Losses:
    reconstruction = None if drawn is None else torch.tensor(2 * total)
    return Losses(torch.tensor(total), reconstruction, scores_BN, drawn)


def batch_of(labels: Tensor, targets: Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(labels), 1, 2, 2), labels, targets)


def image(*pixels: float) -> list[list[list[float]]]:
    """One channel of 2x2."""
    return [[list(pixels[:2]), list(pixels[2:])]]


def test_a_class_is_found_when_it_is_among_as_many_most_active_as_are_shown() -> None:
    scores_BN = scores([0.9, 0.1, 0.8, 0.2], [0.9, 0.1, 0.8, 0.2], [0.1, 0.9, 0.2, 0.8])
    labels_BL = torch.tensor([[2, 0], [0, 1], [0, 2]])
    assert is_found(scores_BN, labels_BL).tolist() == [[True, True], [True, False], [False, False]]


def test_of_one_class_only_the_most_active_counts() -> None:
    scores_BN = scores([0.9, 0.8, 0.0, 0.0], [0.8, 0.9, 0.0, 0.0])
    assert is_found(scores_BN, torch.tensor([[0], [0]])).tolist() == [[True], [False]]


@given(data=st.data(), shown=st.integers(1, 3))
@at_most_examples(60)
def test_found_is_membership_of_the_most_active(data: st.DataObject, shown: int) -> None:
    order = data.draw(st.permutations(range(CLASSES)))  # the most active class first
    labels = data.draw(st.permutations(range(CLASSES)))[:shown]
    scores_BN = torch.empty(1, CLASSES)
    scores_BN[0, torch.tensor(order)] = torch.arange(CLASSES, 0, -1).float()
    expected = [label in order[:shown] for label in labels]
    assert is_found(scores_BN, torch.tensor([labels])).tolist() == [expected]


@pytest.mark.parametrize(
    ("drawn", "true", "expected"),
    [
        (image(1, 1, 0, 0), image(1, 1, 0, 0), 1.0),
        (image(1, 1, 0, 0), image(0, 0, 1, 1), 0.0),
        (image(1, 1, 0, 0), image(1, 0, 0, 0), 1 / 2),
        (image(1, 0, 0, 0), image(1, 1, 1, 0), 1 / 3),
        (image(0.3, 0, 0, 0), image(0.9, 0, 0, 0), 1.0),  # not how intense it is
        (image(0, 0, 0, 0), image(0, 0, 0, 0), 0.0),
        (image(0, 0, 0, 0), image(1, 0, 0, 0), 0.0),
    ],
)
def test_overlap_is_the_intersection_over_the_union_of_the_pixels(
    drawn: list, true: list, expected: float
) -> None:
    found = measure_overlap(torch.tensor([[drawn]]), torch.tensor([[true]]))
    torch.testing.assert_close(found, torch.tensor([[expected]]))


def test_a_drawn_pixel_is_zero_when_eight_bits_round_it_to_zero() -> None:
    """A sigmoid is never zero; a stored digit's faintest pixel is 1 of 255."""
    just, below = SMALLEST_INTENSITY, SMALLEST_INTENSITY * 0.999
    drawn_BLCHW = torch.tensor([[image(just, below, 1e-9, 1.0)]])
    true_BLCHW = torch.tensor([[image(1 / 255, 0.0, 0.0, 1.0)]])
    assert measure_overlap(drawn_BLCHW, true_BLCHW).item() == 1
    assert round(255 * just * 1.001) == 1
    assert round(255 * below) == 0


def test_digits_of_an_image_have_their_overlaps_one_by_one() -> None:
    full, half, none = image(1, 1, 1, 1), image(1, 1, 0, 0), image(0, 0, 0, 0)
    drawn_BLCHW = torch.tensor([[full, half], [none, half]])
    true_BLCHW = torch.tensor([[half, half], [full, full]])
    assert measure_overlap(drawn_BLCHW, true_BLCHW).tolist() == [[0.5, 1.0], [0.0, 0.5]]


def measured(*updates: tuple[Losses, Batch]) -> dict[str, float]:
    metrics = SplitMetrics()
    for losses, batch in updates:
        metrics.update(losses, batch)
    return metrics.compute("test")


def test_an_image_of_two_classes_is_right_when_exactly_both_are_most_active() -> None:
    scores_BN = scores([9, 8, 0, 0], [9, 8, 0, 0], [9, 8, 0, 0], [0, 1, 8, 9])
    labels_BL = torch.tensor([[1, 0], [0, 2], [2, 3], [3, 2]])
    found = measured((losses_of(scores_BN), batch_of(labels_BL)))
    assert found == {"test/loss": 1, "test/error": 0.5, "test/at_least_one": 0.75}


def test_segmentation_counts_nothing_for_a_digit_whose_class_is_not_found() -> None:
    scores_BN = scores([9, 8, 0, 0], [9, 8, 0, 0])
    labels_BL = torch.tensor([[0, 1], [0, 2]])  # 2 is not found, though it is drawn
    same_BLCHW = torch.tensor([[image(1, 1, 0, 0), image(0, 0, 1, 1)]] * 2)
    found = measured((losses_of(scores_BN, drawn=same_BLCHW), batch_of(labels_BL, same_BLCHW)))
    assert found["test/segmentation"] == 0.75


def test_without_a_decoder_there_is_no_segmentation() -> None:
    targets_BLCHW = torch.ones(2, 2, 1, 2, 2)
    batch = batch_of(torch.tensor([[0, 1], [0, 2]]), targets_BLCHW)
    found = measured((losses_of(torch.rand(2, CLASSES)), batch))
    assert set(found) == {"test/loss", "test/error", "test/at_least_one"}


def test_images_of_one_class_have_nothing_that_only_several_have() -> None:
    scores_BN = scores([9, 0, 0, 0], [0, 9, 0, 0])
    drawn_BLCHW = torch.ones(2, 1, 1, 2, 2)
    found = measured((losses_of(scores_BN, 1.5, drawn_BLCHW), batch_of(torch.tensor([0, 0]))))
    assert found == {"test/loss": 1.5, "test/error": 0.5, "test/reconstruction": 3.0}


def test_means_are_over_images_however_they_are_batched() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 30
    scores_MN = torch.rand(count, CLASSES, generator=generator)
    labels_ML = torch.stack(
        [torch.randperm(CLASSES, generator=generator)[:2] for _ in range(count)]
    )
    drawn, true = (
        (torch.rand(count, 2, 1, 2, 2, generator=generator) > 0.5).float() for _ in range(2)
    )
    loss_M = torch.rand(count, generator=generator).double()

    def in_batches_of(*sizes: int) -> dict[str, float]:
        updates = []
        for index in torch.arange(count).split(sizes):
            batch = batch_of(labels_ML[index], true[index])
            total = float(loss_M[index].mean())
            updates.append((losses_of(scores_MN[index], total, drawn[index]), batch))
        return measured(*updates)

    whole = in_batches_of(count)
    assert set(whole) == {
        f"test/{name}"
        for name in ("loss", "error", "reconstruction", "at_least_one", "segmentation")
    }
    for sizes in ((29, 1), (1,) * count, (10, 3, 17)):
        assert in_batches_of(*sizes) == pytest.approx(whole, abs=1e-7)


def test_an_evaluation_starts_anew_after_it_was_computed() -> None:
    metrics = SplitMetrics()
    metrics.update(losses_of(scores([9, 8, 0, 0])), batch_of(torch.tensor([[2, 3]])))
    assert metrics.compute("val")["val/error"] == 1
    metrics.update(losses_of(scores([9, 8, 0, 0]), 3.0), batch_of(torch.tensor([[0, 1]])))
    assert metrics.compute("val") == {"val/loss": 3, "val/error": 0, "val/at_least_one": 1}
    assert metrics.compute("val") == {}


# One of two processes: prints what both together measured.
RANK = """
import sys, torch
from capsweep.data.batches import Batch
from capsweep.training.objective import SplitMetrics
from capsweep.training.objective import Losses
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
)
labels = torch.zeros(1 + 2 * rank, dtype=torch.int64)  # one image of rank 0, three of rank 1
scores = torch.tensor([[0.0, 1.0]] if rank == 0 else [[1.0, 0.0]] * 3)
metrics = SplitMetrics()
metrics.update(Losses(torch.tensor(float(rank)), None, scores), Batch(scores, labels))
print(metrics.compute("test"))
torch.distributed.destroy_process_group()
"""


def test_means_are_over_the_images_of_all_ranks(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=120)[0].splitlines()[-1] for rank in ranks]
    assert told == ["{'test/loss': 0.75, 'test/error': 0.25}"] * 2
