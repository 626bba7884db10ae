"""From a trace to histograms and their figure."""

import argparse

import numpy as np
import pytest
import torch
from png_images import find_colour, read_pixels
from torch import Tensor

from capsweep.errors import UserError
from capsweep.evaluation.figures.vote_distances import add_options, describe_figure, draw, measure

ITERATIONS, CHILDREN, CLASSES = 3, 200, 5


def parse_options(line: str = "") -> argparse.Namespace:
    command = argparse.ArgumentParser()
    add_options(command)
    return command.parse_args(line.split())


PAPER = parse_options()


def trace(images: int = 2) -> list[dict[str, Tensor]]:
    """Votes that come nearer with every iteration."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    child_BML = uniform(images, 1, CHILDREN)
    return [
        {
            "coupling": uniform(images, 1, CHILDREN, CLASSES).softmax(dim=3),
            "squared_distance": uniform(images, 1, CHILDREN, CLASSES) * 0.08 / (t + 1),
            "activation": uniform(images, 1, CLASSES),
            "child_activation": child_BML,
            "pose": uniform(images, 1, CLASSES, 16),
        }
        for t in range(ITERATIONS)
    ]


def test_a_panel_is_a_histogram_of_distances_weighted_by_the_assignment() -> None:
    given = trace()
    found = measure(given, 1, PAPER)
    assert found.weight.shape == (ITERATIONS, CLASSES, 12)
    np.testing.assert_allclose(found.edges, np.arange(13) * 0.05 / 12)
    distance = given[1]["squared_distance"][1, 0, :, 3].double()
    coupling = given[1]["coupling"][1, 0, :, 3].double()
    inside = (distance >= 2 * 0.05 / 12) & (distance < 3 * 0.05 / 12)
    assert found.weight[1, 3, 2] == pytest.approx(float(coupling[inside].sum()))
    assert found.activation[2, 4] == pytest.approx(float(given[2]["activation"][1, 0, 4]))


def test_no_vote_is_lost_between_the_bins_and_beyond() -> None:
    given = trace()
    found = measure(given, 0, PAPER)
    whole = found.weight.sum(axis=2) + found.beyond
    for t, one in enumerate(given):
        np.testing.assert_allclose(whole[t], one["coupling"][0, 0].double().sum(dim=0).numpy())
    assert found.beyond[0].min() > 0
    assert np.abs(found.beyond[2]).max() < 1e-9


def test_activations_of_children_weigh_their_votes() -> None:
    given = trace()
    found = measure(given, 0, parse_options("--weights Ra --bins 1 --range 1"))
    wanted = (given[0]["coupling"][0, 0] * given[0]["child_activation"][0, 0, :, None]).sum(dim=0)
    np.testing.assert_allclose(found.weight[0, :, 0], wanted.numpy(), rtol=1e-5)


def test_plain_distances_are_the_roots() -> None:
    given = trace()
    squared = measure(given, 0, parse_options("--bins 1 --range 0.04"))
    plain = measure(given, 0, parse_options("--distance plain --bins 1 --range 0.2"))
    np.testing.assert_allclose(squared.weight, plain.weight)


def test_the_full_range_holds_every_vote() -> None:
    given = trace()
    found = measure(given, 0, parse_options("--bins 40 --range full"))
    assert found.edges[-1] == pytest.approx(
        max(float(one["squared_distance"][0].max()) for one in given)
    )
    assert np.abs(found.beyond).max() < 1e-9


@pytest.mark.parametrize("given", [None, [], [{"coupling": torch.ones(1, 1, 2, 2)}]])
def test_a_routing_without_distances_is_told_what_it_lacks(given: list | None) -> None:
    with pytest.raises(UserError, match="vote distances need routing=em"):
        measure(given, 0, PAPER)


@pytest.mark.parametrize("line", ["", "--range full"])
def test_no_panel_is_blank_and_rows_have_their_colours(line: str) -> None:
    options = parse_options(line)
    picture = read_pixels(draw(measure(trace(), 0, options), options, 2, "cell"))
    rows = np.array_split(np.arange(picture.shape[0]), ITERATIONS)
    columns = np.array_split(np.arange(picture.shape[1]), CLASSES)
    blue, orange, green = ((31, 119, 180), (255, 127, 14), (44, 160, 44))
    for rows_of_one, colour in zip(rows, (blue, orange, green), strict=True):
        for columns_of_one in columns:
            panel = picture[np.ix_(rows_of_one, columns_of_one)]
            assert find_colour(panel, colour).sum() > 200


def test_the_caption_says_every_choice() -> None:
    found = measure(trace(), 0, PAPER)
    told = describe_figure(found, PAPER)
    for choice in ("squared distance", "coordinates added", "assignment R", "12 bins on [0, 0.05]"):
        assert choice in told
    assert "% of the weight is beyond" in told
    assert "log scale" in describe_figure(found, parse_options("--range full"))
