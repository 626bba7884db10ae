"""From a trace to histograms and their figure."""

import numpy as np
import pytest
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.figures.vote_distances import measure

ITERATIONS, CHILDREN, CLASSES = 3, 200, 5


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
    arrays = measure(trace)
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


@pytest.mark.parametrize("trace", [None, [], [{"coupling": torch.ones(1, 1, 2, 2)}]])
def test_a_routing_without_distances_is_told_what_it_lacks(trace: list | None) -> None:
    with pytest.raises(NotApplicableError, match="vote distances need routing=em"):
        measure(trace)
