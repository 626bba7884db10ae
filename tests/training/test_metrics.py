"""What is measured of a split: errors of images that show one class or several, segmentation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor

from capsweep.data.batches import Batch
from capsweep.training.step import (
    SMALLEST_INTENSITY,
    Losses,
    SplitMetrics,
    is_detected,
    measure_overlap,
)

CLASSES = 4


def losses_of(scores_BN: Tensor, total: float = 1.0, drawn: Tensor | None = None) -> Losses:
    reconstruction = None if drawn is None else torch.tensor(2 * total)
    return Losses(torch.tensor(total), reconstruction, scores_BN, drawn)


def batch_of(labels: Tensor, targets: Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(labels), 1, 2, 2), labels, targets)


def make_image(*pixels: float) -> list[list[list[float]]]:
    """One channel of 2x2."""
    return [[list(pixels[:2]), list(pixels[2:])]]


@given(data=st.data(), shown=st.integers(1, 3))
@at_most_examples(60)
def test_found_is_membership_of_the_most_active(data: st.DataObject, shown: int) -> None:
    order = data.draw(st.permutations(range(CLASSES)))  # the most active class first
    labels = data.draw(st.permutations(range(CLASSES)))[:shown]
    scores_BN = torch.empty(1, CLASSES)
    scores_BN[0, torch.tensor(order)] = torch.arange(CLASSES, 0, -1).float()
    expected = [label in order[:shown] for label in labels]
    assert is_detected(scores_BN, torch.tensor([labels])).tolist() == [expected]


@pytest.mark.parametrize(
    ("drawn", "true", "expected"),
    [
        (make_image(1, 1, 0, 0), make_image(1, 1, 0, 0), 1.0),
        (make_image(1, 1, 0, 0), make_image(0, 0, 1, 1), 0.0),
        (make_image(1, 1, 0, 0), make_image(1, 0, 0, 0), 1 / 2),
        (make_image(1, 0, 0, 0), make_image(1, 1, 1, 0), 1 / 3),
        (make_image(0.3, 0, 0, 0), make_image(0.9, 0, 0, 0), 1.0),  # not how intense it is
        (make_image(0, 0, 0, 0), make_image(0, 0, 0, 0), 0.0),
        (make_image(0, 0, 0, 0), make_image(1, 0, 0, 0), 0.0),
        # A sigmoid is never zero: what eight bits round to zero is.
        (make_image(SMALLEST_INTENSITY, 1e-3, 1e-9, 1), make_image(1 / 255, 0, 0, 1), 1.0),
    ],
)
def test_overlap_is_the_intersection_over_the_union_of_the_pixels(
    drawn: list, true: list, expected: float
) -> None:
    found = measure_overlap(torch.tensor([[drawn]]), torch.tensor([[true]]))
    torch.testing.assert_close(found, torch.tensor([[expected]]))


def measure_updates(*updates: tuple[Losses, Batch]) -> dict[str, float]:
    metrics = SplitMetrics()
    for losses, batch in updates:
        metrics.update(losses, batch)
    return metrics.compute("test")


def test_of_two_classes_both_must_be_the_most_active_and_each_drawing_counts_once_found() -> None:
    scores_BN = torch.tensor([[9.0, 8, 0, 0]] * 3 + [[0, 1, 8, 9]])
    labels_BL = torch.tensor([[1, 0], [0, 2], [2, 3], [3, 2]])
    same_BLCHW = torch.tensor([[make_image(1, 1, 0, 0), make_image(0, 0, 1, 1)]] * 4)
    both = {"test/loss": 1, "test/error": 0.5, "test/at_least_one": 0.75}
    both["test/balanced_error"] = (0 / 2 + 0 / 1 + 2 / 3 + 1 / 2) / 4  # missed of shown, by class
    for targets in (None, same_BLCHW):
        assert measure_updates((losses_of(scores_BN), batch_of(labels_BL, targets))) == both
    drawn = (losses_of(scores_BN, drawn=same_BLCHW), batch_of(labels_BL, same_BLCHW))
    found = {"test/reconstruction": 2, "test/segmentation": 5 / 8}
    metrics = SplitMetrics()
    for _ in range(2):  # the second evaluation starts anew
        metrics.update(*drawn)
        assert metrics.compute("test") == both | found
    assert metrics.compute("test") == {}


def test_images_of_one_class_have_nothing_that_only_several_have() -> None:
    scores_BN = torch.tensor([[9.0, 0, 0, 0], [0, 9, 0, 0], [5, 0, 0, 5], [9, 0, 0, 0]])
    losses = losses_of(scores_BN, 1.5, torch.ones(4, 1, 1, 2, 2))
    means = measure_updates((losses, batch_of(torch.tensor([0, 0, 0, 2]))))
    # Of three images of class 0 one is missed, of one of class 2 too; the others have no image.
    balanced = {"test/balanced_error": pytest.approx((1 / 3 + 1) / 2)}
    assert means == {"test/loss": 1.5, "test/error": 0.5, "test/reconstruction": 3.0} | balanced


def test_means_are_over_images_however_they_are_batched() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 30
    scores_MN = torch.rand(count, CLASSES, generator=generator)
    labels_ML = torch.rand(count, CLASSES, generator=generator).argsort()[:, :2]
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
        return measure_updates(*updates)

    whole = in_batches_of(count)
    assert len(whole) == 6
    for sizes in ((29, 1), (1,) * count, (10, 3, 17)):
        assert in_batches_of(*sizes) == pytest.approx(whole, abs=1e-7)
