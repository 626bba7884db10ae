"""Figures of cells: panels as they are on the page, histograms of the distances of votes, and
perturbations, where one dimension of a pose at a time is tweaked.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from png_images import find_colour, read_pixels
from torch import Tensor, nn
from trained_cells import trained

from capsweep.config.cell import Cell
from capsweep.lab.evaluation import figures
from capsweep.lab.evaluation.figures import BandedCurve, Panel, decoded, vote_distances
from capsweep.report.charts import COLOURS

ITERATIONS, CHILDREN, CLASSES = 3, 200, 5
POSE = 4


def test_every_curve_has_a_colour_of_its_own_in_every_panel() -> None:
    x = np.arange(1, 11)
    lines = [
        BandedCurve(f"layer {n}", (n + 1.0) / x, 0 * x, (n + 1.2) / x, control=n + 1.5)
        for n in range(len(COLOURS))
    ]
    panels = [Panel("change", lines, scale) for scale in ("linear", "log")]
    pixels = read_pixels(figures.draw_panels(panels, "a title", "a caption"))
    for half in np.array_split(pixels, 2, axis=1):
        for colour in COLOURS:
            assert find_colour(half, colour).sum() > 150


def make_trace() -> list[dict[str, Tensor]]:
    """Votes that come nearer with every iteration."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    return [
        {
            "coupling": uniform(1, 1, CHILDREN, CLASSES).softmax(dim=3),
            "squared_distance": uniform(1, 1, CHILDREN, CLASSES) * 0.08 / (t + 1),
            "activation": uniform(1, 1, CLASSES),
        }
        for t in range(ITERATIONS)
    ]


def test_a_panel_is_a_histogram_of_distances_weighted_by_the_assignment() -> None:
    trace = make_trace()
    arrays = vote_distances.count_distances(trace)
    assert arrays["weight"].shape == (ITERATIONS, CLASSES, 12)
    np.testing.assert_allclose(arrays["edges"], np.arange(13) * 0.05 / 12)
    distance = trace[1]["squared_distance"][0, 0, :, 3].double()
    coupling = trace[1]["coupling"][0, 0, :, 3].double()
    inside = (distance >= 2 * 0.05 / 12) & (distance < 3 * 0.05 / 12)
    assert arrays["weight"][1, 3, 2] == pytest.approx(float(coupling[inside].sum()))
    assert arrays["activation"][2, 4] == pytest.approx(float(trace[2]["activation"][0, 0, 4]))
    total = arrays["weight"].sum(axis=2) + arrays["beyond"]  # no vote is lost
    for t, iteration in enumerate(trace):
        expected = iteration["coupling"][0, 0].double().sum(dim=0)
        np.testing.assert_allclose(total[t], expected.numpy())
    assert arrays["beyond"][0].min() > 0
    assert np.abs(arrays["beyond"][2]).max() < 1e-9


class ShowsPoses(nn.Module):
    """Its picture is the masked poses themselves."""

    def forward(self, pose_BJD: Tensor, mask_BJ: Tensor) -> Tensor:
        return (pose_BJD * mask_BJ[..., None])[:, None]


def test_one_dimension_of_one_capsule_changes_by_the_tweak() -> None:
    pose_JD = torch.randn(CLASSES, POSE, generator=torch.Generator().manual_seed(0))
    drawn_DTCHW = decoded.draw_tweaked(ShowsPoses(), pose_JD, 3)
    assert drawn_DTCHW.shape == (POSE, 11, 1, CLASSES, POSE)
    for d in range(POSE):
        for t, tweak in enumerate(decoded.TWEAKS):
            expected_JD = torch.zeros(CLASSES, POSE)
            expected_JD[3] = pose_JD[3]
            expected_JD[3, d] += float(tweak)
            torch.testing.assert_close(drawn_DTCHW[d, t, 0], expected_JD)


def test_of_each_class_the_first_correct_example_is_taken_else_the_first() -> None:
    labels_M = np.array([2, 0, 2, 1, 1])
    stored = np.eye(3)[[1, 0, 2, 0, 2]], labels_M  # class 1 is never right
    assert decoded.find_first(stored) == [(0, 1), (1, 3), (2, 2)]


def test_examples_of_a_cell_are_drawn_from_the_capsule_of_their_own_class(
    small_cell: Callable[..., Cell],
) -> None:
    network = trained(small_cell("epochs=1", "limit_batches=1"))
    stored = network.stored
    label = int(stored[1][7])
    (page,) = decoded.tweak_poses(network, [(label, 7)])
    assert (page["place"], page["label"]) == (7, label)
    assert page["prediction"] == stored[0][7].argmax()
    assert page["length"] == pytest.approx(float(stored[0][7, label]), abs=1e-5)
    _, pose_KJD = decoded.run_network(network, [7])
    plain = decoded.draw_from_class(decoded.find_decoder(network), pose_KJD, np.array([label]))
    np.testing.assert_allclose(page["reconstructions"][3, 5], plain[0].numpy(), atol=1e-6)
