"""What decoders draw: test examples and their class capsules, for reconstructions and overlapping
digits.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from trained_cells import trained

from capsweep.config.cell import Cell
from capsweep.errors import NotApplicableError, UserError
from capsweep.lab.evaluation.checkpoint import TrainedCell
from capsweep.lab.evaluation.figures import decoded
from capsweep.training.step import Objective

SHORT = ("epochs=1", "limit_batches=1")
TWO = ("dataset=multimnist", "dataset.source=digits")
OPTIONS = Namespace(correct=3, failures=2)
MakeCell = Callable[..., Cell]


def test_a_prediction_that_is_shown_stands_at_the_place_of_its_label() -> None:
    scores_KN = np.zeros((3, 10))
    scores_KN[:, [7, 2]] = [0.9, 0.8]
    labels_KL = np.array([[2, 8], [2, 7], [5, 0]])
    assert decoded.match_predictions(scores_KN, labels_KL).tolist() == [[2, 7], [2, 7], [7, 2]]
    assert decoded.match_predictions(scores_KN, labels_KL[:, :1]).tolist() == [[7], [7], [7]]


def test_examples_are_those_of_the_test_and_say_what_they_said(
    small_cell: MakeCell,
) -> None:
    network = trained(small_cell(*SHORT))
    places, stored = [359, 4, 4, 17], network.stored
    arrays, pose_KJD = decoded.run_network(network, places)
    assert arrays["labels"][:, 0].tolist() == stored[1][places].tolist()
    np.testing.assert_allclose(pose_KJD.norm(dim=2).numpy(), stored[0][places], atol=1e-5)
    with pytest.raises(NotApplicableError, match="no test example is selected; raise --correct"):
        decoded.draw_columns(network, Namespace(correct=0, failures=0), 1)
    altered_MN, label = stored[0].copy(), stored[1][17]
    is_right = arrays["predictions"][3, 0] == label
    altered_MN[17, (label + 1) % 10 if is_right else label] = 9
    with pytest.raises(UserError, match=f"{network.name}: .* 1 of 4 test examples differently"):
        decoded.run_network(replace(network, stored=(altered_MN, stored[1])), places)


def draw_labels(network: TrainedCell, places_K: np.ndarray) -> np.ndarray:
    """[K, L, C, H, W]: what training draws of the labels of test examples."""
    objective = Objective(lambda scores, _: scores.sum(), 1.0)
    with torch.no_grad():
        losses = objective(network.network, network.test.evaluation_batch(slice(0, 500)))
    assert losses.drawn_BLCHW is not None
    return losses.drawn_BLCHW.numpy()[places_K]


@pytest.mark.parametrize(
    ("overrides", "classes"), [((), 1), ((*TWO, "dataset.batches.test_examples=500"), 2)]
)
def test_columns_are_what_training_drew_of_labels_and_then_of_predictions(
    small_cell: MakeCell, overrides: tuple[str, ...], classes: int
) -> None:
    """Three correct examples, then two failures from labels and from predictions."""
    network = trained(small_cell("epochs=1", *overrides))
    stored = network.stored
    arrays, text = decoded.draw_columns(network, OPTIONS, classes)
    places_K, labels_KL, drawn_KLCHW = (arrays[k] for k in ("places", "labels", "reconstructions"))
    labels_ML, of_labels = stored[1].reshape(len(stored[1]), -1), [0, 1, 2, 3, 5]
    said_ML = np.argsort(-stored[0], axis=1)[:, :classes]
    right_M = (np.sort(said_ML, axis=1) == np.sort(labels_ML, axis=1)).all(axis=1)
    assert right_M.sum() >= 3, "the network of this test has learnt too little"
    assert places_K[:3].tolist() == np.flatnonzero(right_M)[:3].tolist()
    assert places_K[3:].tolist() == np.flatnonzero(~right_M)[:2].repeat(2).tolist()
    assert (labels_KL == labels_ML[places_K]).all()
    assert (arrays["drawn_from"][of_labels] == labels_KL[of_labels]).all()
    assert (arrays["drawn_from"][[4, 6]] == arrays["predictions"][[4, 6]]).all()
    drawn = draw_labels(network, places_K)
    np.testing.assert_allclose(drawn_KLCHW[of_labels], drawn[of_labels], atol=1e-6)
    assert np.abs(drawn_KLCHW[3::2] - drawn_KLCHW[4::2]).max() > 1e-3
    assert f"the first 3 of {right_M.sum()} examples that are classified correctly" in text
    if classes == 2:
        with pytest.raises(NotApplicableError, match="has 2 labels; draw segmentation"):
            decoded.draw_columns(network, OPTIONS, 1)


def test_disjoint_digits_keep_their_colours_and_common_pixels_are_yellow() -> None:
    drawn_KLCHW = np.zeros((1, 2, 1, 2, 3))
    drawn_KLCHW[0, 0, 0, 0] = 0.5, 1, 0
    drawn_KLCHW[0, 1, 0, 1] = 0, 0.25, 1
    shown = decoded.overlay_digits(drawn_KLCHW)[0]
    assert shown[0].tolist() == [[0.5, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert shown[1].tolist() == [[0, 0, 0], [0, 0.25, 0], [0, 1, 0]]
    drawn_KLCHW[0, 1, 0, 0, 1] = 1
    assert decoded.overlay_digits(drawn_KLCHW)[0, 0, 1].tolist() == [1, 1, 0]
