"""Figure 3: examples beside what is drawn from the label's capsule, or from the predicted one."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from png_images import read_pixels
from trained_cells import trained

from capsweep.config.cell import Cell
from capsweep.errors import NotApplicableError
from capsweep.evaluation.decoded import Columns, Examples
from capsweep.evaluation.figures import reconstructions
from capsweep.training.objective import Objective


def test_columns_are_what_training_drew_of_labels_and_then_of_predictions(
    small_cell: Callable[..., Cell],
) -> None:
    network, stored = trained(small_cell("epochs=1"))
    found = reconstructions.measure(network, stored, 5, 3)
    shown = found.examples
    labels, said, drawn_from = (
        shown.labels_KL[:, 0],
        shown.predictions_KL[:, 0],
        found.from_KL[:, 0],
    )
    right_M = stored[0].argmax(axis=1) == stored[1]
    assert shown.places_K[:5].tolist() == np.flatnonzero(right_M)[:5].tolist()
    assert shown.places_K[5:].tolist() == np.flatnonzero(~right_M)[:3].repeat(2).tolist()
    assert (labels == stored[1][shown.places_K]).all()
    assert (said == stored[0][shown.places_K].argmax(axis=1)).all()
    assert (labels[:5] == said[:5]).all()
    assert (drawn_from[:5] == labels[:5]).all()
    assert drawn_from[5:].tolist() == np.stack([labels[5::2], said[5::2]], axis=1).ravel().tolist()
    objective = Objective(lambda scores, _: scores.sum(), 1.0, 10)
    batch = network.test.evaluation_batch(slice(0, len(network.test)))
    with torch.no_grad():
        drawn = objective(network.network, batch).drawn_BLCHW
    assert drawn is not None
    of_labels = [*range(5), 5, 7, 9]
    np.testing.assert_allclose(
        found.drawn_KLCHW[of_labels], drawn.numpy()[shown.places_K[of_labels]], atol=1e-6
    )
    assert np.abs(found.drawn_KLCHW[5::2] - found.drawn_KLCHW[6::2]).max() > 1e-3
    assert found.failures == [5, 7, 9]


def test_of_images_of_two_classes_segmentation_is_named(small_cell: Callable[..., Cell]) -> None:
    two = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=50"]
    network, stored = trained(small_cell("epochs=1", "limit_batches=1", *two))
    with pytest.raises(NotApplicableError, match=r"two classes, .* ask for segmentation"):
        reconstructions.measure(network, stored, 1, 1)


def make_columns(labels: list[int], predictions: list[int], wrong: int) -> Columns:
    """Of a test of 360 examples."""
    count = len(labels)
    images_KCHW = np.random.default_rng(0).random((count, 1, 8, 8))
    examples = Examples(
        places_K=np.arange(count),
        images_KCHW=images_KCHW,
        labels_KL=np.array(labels)[:, None],
        predictions_KL=np.array(predictions)[:, None],
        scores_KN=np.zeros((count, 10)),
        pose_KJD=torch.zeros(count, 10, 4),
        digits_KLCHW=None,
    )
    from_KL = np.array(labels)[:, None]
    return Columns(examples, from_KL, images_KCHW[:, None] ** 2, 360 - wrong, wrong)


def test_the_picture_shows_inputs_and_drawings() -> None:
    columns = make_columns([3, 5, 5], [3, 3, 3], 41)
    picture = read_pixels(reconstructions.draw(columns, "cell"))
    intensities = set(np.unique(picture).tolist())
    for images in (columns.examples.images_KCHW, columns.drawn_KLCHW):
        shown = {int(value) for value in np.unique((255 * images).astype(int))}
        assert len(shown & intensities) > 0.9 * len(shown)


def test_the_caption_counts_examples_and_failures() -> None:
    caption = reconstructions.describe_figure(make_columns([3, 5, 5], [3, 3, 3], 41))
    assert "the first 1 of 319 examples that are classified correctly" in caption
    assert "the first 1 of 41 failures among 360 test examples" in caption
    assert "each failure is drawn from its label's capsule, then from the predicted one" in caption
    assert "from left to right: 0, 1, 2" in caption
