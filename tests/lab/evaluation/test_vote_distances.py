"""From a trace to histograms and their figure."""

import numpy as np
import pytest
import torch
from png_images import find_colour, read_pixels
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.figures.vote_distances import describe_figure, draw, measure

ITERATIONS, CHILDREN, CLASSES = 3, 200, 5


def make_trace(images: int = 2) -> list[dict[str, Tensor]]:
    """Votes that come nearer with every iteration."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    return [
        {
            "coupling": uniform(images, 1, CHILDREN, CLASSES).softmax(dim=3),
            "squared_distance": uniform(images, 1, CHILDREN, CLASSES) * 0.08 / (t + 1),
            "activation": uniform(images, 1, CLASSES),
        }
        for t in range(ITERATIONS)
    ]


def test_a_panel_is_a_histogram_of_distances_weighted_by_the_assignment() -> None:
    trace = make_trace()
    histograms = measure(trace, 1)
    assert histograms.weight.shape == (ITERATIONS, CLASSES, 12)
    np.testing.assert_allclose(histograms.edges, np.arange(13) * 0.05 / 12)
    distance = trace[1]["squared_distance"][1, 0, :, 3].double()
    coupling = trace[1]["coupling"][1, 0, :, 3].double()
    inside = (distance >= 2 * 0.05 / 12) & (distance < 3 * 0.05 / 12)
    assert histograms.weight[1, 3, 2] == pytest.approx(float(coupling[inside].sum()))
    assert histograms.activation[2, 4] == pytest.approx(float(trace[2]["activation"][1, 0, 4]))
    total = histograms.weight.sum(axis=2) + histograms.beyond  # no vote is lost
    for t, iteration in enumerate(trace):
        expected = iteration["coupling"][1, 0].double().sum(dim=0)
        np.testing.assert_allclose(total[t], expected.numpy())
    assert histograms.beyond[0].min() > 0
    assert np.abs(histograms.beyond[2]).max() < 1e-9


@pytest.mark.parametrize("trace", [None, [], [{"coupling": torch.ones(1, 1, 2, 2)}]])
def test_a_routing_without_distances_is_told_what_it_lacks(trace: list | None) -> None:
    with pytest.raises(NotApplicableError, match="vote distances need routing=em"):
        measure(trace, 0)


def test_no_panel_is_blank_and_rows_have_their_colours() -> None:
    histograms = measure(make_trace(), 0)
    assert "12 bins on [0, 0.05]" in describe_figure(histograms)
    picture = read_pixels(draw(histograms, 2, "cell"))
    rows = np.array_split(np.arange(picture.shape[0]), ITERATIONS)
    colours = ((31, 119, 180), (255, 127, 14), (44, 160, 44))
    for row, colour in zip(rows, colours, strict=True):
        for column in np.array_split(np.arange(picture.shape[1]), CLASSES):
            assert find_colour(picture[np.ix_(row, column)], colour).sum() > 200
