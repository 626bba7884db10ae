"""Figure 5: the two digits of an image, drawn one by one and laid over each other."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from png_images import find_colour, read_pixels
from trained_cells import trained

from capsweep.config.cell import Cell
from capsweep.errors import NotApplicableError
from capsweep.evaluation.decoded import Columns, Examples
from capsweep.evaluation.figures import segmentation
from capsweep.evaluation.figures.segmentation import Segmented
from capsweep.training.metrics import measure_overlap
from capsweep.training.objective import Objective

TWO = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=500"]


def test_disjoint_digits_keep_their_colours_and_common_pixels_are_yellow() -> None:
    drawn_KLCHW = np.zeros((1, 2, 1, 2, 3))
    drawn_KLCHW[0, 0, 0, 0] = 0.5, 1, 0
    drawn_KLCHW[0, 1, 0, 1] = 0, 0.25, 1
    seen = segmentation.overlay_digits(drawn_KLCHW)[0]
    assert seen[0].tolist() == [[0.5, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert seen[1].tolist() == [[0, 0, 0], [0, 0.25, 0], [0, 1, 0]]
    drawn_KLCHW[0, 1, 0, 0, 1] = 1
    assert segmentation.overlay_digits(drawn_KLCHW)[0, 0, 1].tolist() == [1, 1, 0]


def test_the_absent_class_is_neither_label_nor_prediction() -> None:
    examples = Examples(
        places_K=np.arange(2),
        images_KCHW=np.zeros((2, 1, 4, 4)),
        labels_KL=np.array([[5, 0], [2, 8]]),
        predictions_KL=np.array([[5, 0], [2, 7]]),
        scores_KN=np.array([[9, 1, 1, 1, 1, 8, 1, 3, 1, 1], [0, 1, 9, 4, 0, 0, 0, 8, 7, 0.0]]),
        pose_KJD=torch.zeros(2, 10, 4),
        digits_KLCHW=None,
    )
    assert segmentation.find_absent(examples).tolist() == [7, 3]
    assert examples.scores_KN[0, 5] == 8


def test_columns_are_what_training_drew_of_both_labels(small_cell: Callable[..., Cell]) -> None:
    network, stored = trained(small_cell("epochs=1", *TWO))
    found = segmentation.measure(network, stored, 3, 2, 2)
    columns, examples = found.columns, found.columns.examples
    said_ML = np.sort(np.argsort(-stored[0], axis=1)[:, :2], axis=1)
    right_M = (said_ML == np.sort(stored[1], axis=1)).all(axis=1)
    assert right_M.sum() >= 5, "the network of this test has learnt too little"
    assert examples.places_K[:5].tolist() == np.flatnonzero(right_M)[:5].tolist()
    assert examples.places_K[5:].tolist() == np.flatnonzero(~right_M)[:2].repeat(2).tolist()
    assert found.starred_K.tolist() == [False] * 3 + [True] * 2 + [False] * 4
    of_labels = [0, 1, 2, 5, 7]
    assert (columns.from_KL[of_labels] == examples.labels_KL[of_labels]).all()
    assert (columns.from_KL[[6, 8]] == examples.predictions_KL[[6, 8]]).all()
    for k in (3, 4):
        assert columns.from_KL[k, 0] == examples.labels_KL[k, 0]
        assert columns.from_KL[k, 1] not in [*examples.labels_KL[k], *examples.predictions_KL[k]]
    objective = Objective(lambda scores, _: scores.sum(), 1.0, 10)
    batch = network.test.evaluation_batch(slice(0, 500))
    with torch.no_grad():
        drawn = objective(network.network, batch).drawn_BLCHW
    assert drawn is not None
    assert batch.targets_BLCHW is not None
    places = examples.places_K[of_labels]
    np.testing.assert_allclose(columns.drawn_KLCHW[of_labels], drawn.numpy()[places], atol=1e-6)
    expected_KL = measure_overlap(drawn[places], batch.targets_BLCHW[places]).numpy()
    np.testing.assert_allclose(found.overlap_KL[of_labels], expected_KL, atol=0.02)
    assert np.isnan(found.overlap_KL[3:5, 1]).all()


def segmented() -> Segmented:
    """A correct column, a starred one, and a failure; first digits above, second ones below."""
    drawn_KLCHW = np.zeros((4, 2, 1, 6, 6))
    drawn_KLCHW[:, 0, 0, :2], drawn_KLCHW[:, 1, 0, 4:] = 1, 1
    examples = Examples(
        places_K=np.array([0, 1, 4, 4]),
        images_KCHW=drawn_KLCHW.sum(axis=1),
        labels_KL=np.array([[2, 7], [5, 0], [2, 8], [2, 8]]),
        predictions_KL=np.array([[2, 7], [5, 0], [2, 7], [2, 7]]),
        scores_KN=np.zeros((4, 10)),
        pose_KJD=torch.zeros(4, 10, 4),
        digits_KLCHW=drawn_KLCHW,
    )
    from_KL = np.array([[2, 7], [5, 7], [2, 8], [2, 7]])
    overlap_KL = np.array([[0.5, 0.7], [0.6, np.nan], [0.6, 0.6], [0.6, np.nan]])
    columns = Columns(examples, from_KL, drawn_KLCHW, correct=459, wrong=41)
    return Segmented(columns, np.array([False, True, False, False]), overlap_KL)


def test_the_picture_has_both_digits_of_every_column() -> None:
    picture = read_pixels(segmentation.draw(segmented(), "cell"))
    zoom = round(112 / 6)
    red, green = (find_colour(picture, colour).sum() for colour in ((255, 0, 0), (0, 255, 0)))
    assert red == pytest.approx(green, rel=0.1)
    assert red > 4 * (2 * zoom) * (6 * zoom) * 0.8


def test_the_caption_says_what_each_group_of_columns_is() -> None:
    told = segmentation.describe_figure(segmented())
    assert "the first 1 of 459 examples that are classified correctly" in told
    assert "the first 1 of 41 failures among 500 test examples" in told
    assert "the second label replaced by the most active class that is neither" in told
    assert "each failure is drawn from its labels, then from the predictions (P)" in told
    assert "intersection over union of non-zero pixels): 0.60" in told
    assert "from left to right: 0, 1, 4" in told


def test_one_class_in_an_image_needs_no_segmentation(small_cell: Callable[..., Cell]) -> None:
    network, stored = trained(small_cell("epochs=1", "limit_batches=1"))
    with pytest.raises(NotApplicableError, match=r"needs those that do \(dataset=multimnist\)"):
        segmentation.measure(network, stored, 1, 1, 1)
