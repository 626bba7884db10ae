"""Examples with their capsules, and what is drawn from them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from trained_cells import trained

from capsweep.config.cell import Cell
from capsweep.errors import NotApplicableError, UserError
from capsweep.evaluation import decoded
from capsweep.model.capsnet import Decoder


def test_a_prediction_that_is_shown_stands_at_the_place_of_its_label() -> None:
    scores_KN = np.zeros((3, 10))
    scores_KN[:, [7, 2]] = [0.9, 0.8]
    labels_KL = np.array([[2, 8], [2, 7], [5, 0]])
    assert decoded.match_predictions(scores_KN, labels_KL).tolist() == [[2, 7], [2, 7], [7, 2]]
    assert decoded.match_predictions(scores_KN, labels_KL[:, :1]).tolist() == [[7], [7], [7]]


def test_a_drawing_is_made_from_one_capsule_alone() -> None:
    torch.manual_seed(0)
    decoder = Decoder([8], num_classes=5, class_pose=4, image_shape=(1, 6, 6))
    pose_KJD = torch.randn(3, 5, 4)
    drawn_KCHW = decoded.draw_from_class(decoder, pose_KJD, np.array([4, 0, 2]))
    assert drawn_KCHW.shape == (3, 1, 6, 6)
    for k, label in enumerate((4, 0, 2)):
        alone_KJD = torch.zeros(1, 5, 4)
        alone_KJD[0, label] = pose_KJD[k, label]
        expected = decoder(alone_KJD, torch.ones(1, 5))[0]
        torch.testing.assert_close(drawn_KCHW[k], expected, atol=1e-6, rtol=0)


def test_the_first_right_and_the_first_wrong_are_chosen() -> None:
    labels_M = np.array([0, 1, 2, 0, 1, 2])
    scores_MN = np.eye(3)[[0, 2, 2, 1, 1, 2]]
    assert decoded.choose_places((scores_MN, labels_M), correct=3, failures=5) == [0, 2, 4, 1, 3]
    assert decoded.choose_places((scores_MN, labels_M), correct=0, failures=1) == [1]


def test_examples_are_those_of_the_test_and_say_what_they_said(
    small_cell: Callable[..., Cell],
) -> None:
    network, stored = trained(small_cell("epochs=1", "limit_batches=1"))
    places = [359, 4, 4, 17]
    examples = decoded.ask_network(network, stored, places)
    np.testing.assert_allclose(examples.scores_KN, stored[0][places], atol=1e-6)
    assert examples.labels_KL[:, 0].tolist() == stored[1][places].tolist()
    assert sorted([*examples.correct, *examples.failures]) == [0, 1, 2, 3]
    assert examples.pose_KJD.shape == (4, 10, 16)
    np.testing.assert_allclose(examples.pose_KJD.norm(dim=2).numpy(), examples.scores_KN, atol=1e-5)
    altered_MN, label = stored[0].copy(), stored[1][17]
    altered_MN[17, label if 3 in examples.failures else (label + 1) % 10] = 9
    with pytest.raises(NotApplicableError, match="no such examples; ask for --correct"):
        decoded.ask_network(network, stored, [])
    with pytest.raises(UserError, match=f"{network.name}: .* 1 of 4 test examples otherwise"):
        decoded.ask_network(network, (altered_MN, stored[1]), places)


@pytest.mark.parametrize(
    "overrides", [["loss.reconstruction.weight=0"], ["model=cnn_small", "model.hidden=8"]]
)
def test_a_network_without_a_decoder_is_told_how_to_get_one(
    small_cell: Callable[..., Cell], overrides: list[str]
) -> None:
    network, _ = trained(small_cell("epochs=1", "limit_batches=1", *overrides))
    with pytest.raises(NotApplicableError, match=r"no decoder; .* loss\.reconstruction\.weight"):
        decoded.find_decoder(network)
