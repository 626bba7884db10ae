"""Figure 4: one dimension of a pose at a time is tweaked, and nothing else."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from trained_cells import trained

from capsweep.config.cell import Cell
from capsweep.lab.evaluation.figures import decoded, perturbations
from capsweep.lab.evaluation.figures.perturbations import TWEAKS

CLASSES, POSE = 5, 4


class ShowsPoses(nn.Module):
    """Its picture is the masked poses themselves."""

    def forward(self, pose_BJD: Tensor, mask_BJ: Tensor) -> Tensor:
        return (pose_BJD * mask_BJ[..., None])[:, None]


def test_one_dimension_of_one_capsule_changes_by_the_tweak() -> None:
    pose_JD = torch.randn(CLASSES, POSE, generator=torch.Generator().manual_seed(0))
    drawn_DTCHW = perturbations.draw_tweaked(ShowsPoses(), pose_JD, 3)
    assert drawn_DTCHW.shape == (POSE, 11, 1, CLASSES, POSE)
    for d in range(POSE):
        for t, tweak in enumerate(TWEAKS):
            expected_JD = torch.zeros(CLASSES, POSE)
            expected_JD[3] = pose_JD[3]
            expected_JD[3, d] += float(tweak)
            torch.testing.assert_close(drawn_DTCHW[d, t, 0], expected_JD)


def test_of_each_class_the_first_correct_example_is_taken_else_the_first() -> None:
    labels_M = np.array([2, 0, 2, 1, 1])
    stored = np.eye(3)[[1, 0, 2, 0, 2]], labels_M  # class 1 is never right
    assert perturbations.find_first(stored) == [(0, 1), (1, 3), (2, 2)]


def test_examples_of_a_cell_are_drawn_from_the_capsule_of_their_own_class(
    small_cell: Callable[..., Cell],
) -> None:
    network = trained(small_cell("epochs=1", "limit_batches=1"))
    stored = network.stored
    label = int(stored[1][7])
    (page,) = perturbations.measure(network, [(label, 7)])
    assert (page["place"], page["label"]) == (7, label)
    assert page["prediction"] == stored[0][7].argmax()
    assert page["length"] == pytest.approx(float(stored[0][7, label]), abs=1e-5)
    _, pose_KJD = decoded.ask_network(network, [7])
    plain = decoded.draw_from_class(decoded.find_decoder(network), pose_KJD, np.array([label]))
    np.testing.assert_allclose(page["reconstructions"][3, 5], plain[0].numpy(), atol=1e-6)
