"""From a trace to histograms and their figure."""

import io

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import Tensor

from capsweep.errors import UserError
from capsweep.evaluation import vote_distance_figure
from capsweep.evaluation.vote_distances import Asked, of_image

ITERATIONS, CHILDREN, CLASSES = 3, 200, 5
PAPER = Asked("R", "squared", 12, 0.05)


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
    found = of_image(given, 1, PAPER)
    assert found.weight.shape == (ITERATIONS, CLASSES, 12)
    np.testing.assert_allclose(found.edges, np.arange(13) * 0.05 / 12)
    distance = given[1]["squared_distance"][1, 0, :, 3].double()
    coupling = given[1]["coupling"][1, 0, :, 3].double()
    inside = (distance >= 2 * 0.05 / 12) & (distance < 3 * 0.05 / 12)
    assert found.weight[1, 3, 2] == pytest.approx(float(coupling[inside].sum()))
    assert found.activation[2, 4] == pytest.approx(float(given[2]["activation"][1, 0, 4]))


def test_no_vote_is_lost_between_the_bins_and_beyond() -> None:
    given = trace()
    found = of_image(given, 0, PAPER)
    whole = found.weight.sum(axis=2) + found.beyond
    for t, one in enumerate(given):
        np.testing.assert_allclose(whole[t], one["coupling"][0, 0].double().sum(dim=0).numpy())
    assert found.beyond[0].min() > 0
    assert np.abs(found.beyond[2]).max() < 1e-9


def test_activations_of_children_weigh_their_votes() -> None:
    given = trace()
    found = of_image(given, 0, Asked("Ra", "squared", 1, 1.0))
    wanted = (given[0]["coupling"][0, 0] * given[0]["child_activation"][0, 0, :, None]).sum(dim=0)
    np.testing.assert_allclose(found.weight[0, :, 0], wanted.numpy(), rtol=1e-5)


def test_plain_distances_are_the_roots() -> None:
    given = trace()
    squared = of_image(given, 0, Asked("R", "squared", 1, 0.04))
    plain = of_image(given, 0, Asked("R", "plain", 1, 0.2))
    np.testing.assert_allclose(squared.weight, plain.weight)


def test_the_full_range_holds_every_vote() -> None:
    given = trace()
    found = of_image(given, 0, Asked("R", "squared", 40, None))
    assert found.edges[-1] == pytest.approx(
        max(float(one["squared_distance"][0].max()) for one in given)
    )
    assert np.abs(found.beyond).max() < 1e-9


@pytest.mark.parametrize("given", [None, [], [{"coupling": torch.ones(1, 1, 2, 2)}]])
def test_a_routing_without_distances_is_told_what_it_lacks(given: list | None) -> None:
    with pytest.raises(UserError, match="vote distances need routing=em"):
        of_image(given, 0, PAPER)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Asked("r", "squared", 12, 0.05), "--weights must be one of R, Ra, got r"),
        (Asked("R", "cosine", 12, 0.05), "--distance must be one of squared, plain, got cosine"),
        (Asked("R", "squared", 0, 0.05), "--bins must be >= 1, got 0"),
        (Asked("R", "squared", 12, -1.0), "--range must be full or a number above 0, got -1"),
    ],
)
def test_what_cannot_be_meant_names_its_option(asked: Asked, message: str) -> None:
    with pytest.raises(UserError, match=message):
        asked.check()


@pytest.mark.parametrize("end", [0.05, None])
def test_no_panel_is_blank_and_rows_have_their_colours(end: float | None) -> None:
    asked = Asked("R", "squared", 12, end)
    file = io.BytesIO()
    vote_distance_figure.draw(of_image(trace(), 0, asked), asked, 2, "cell", file)
    file.seek(0)
    picture = imread(file, format="png")[..., :3]
    rows = np.array_split(np.arange(picture.shape[0]), ITERATIONS)
    columns = np.array_split(np.arange(picture.shape[1]), CLASSES)
    blue, orange, green = ([31, 119, 180], [255, 127, 14], [44, 160, 44])
    for rows_of_one, colour in zip(rows, (blue, orange, green), strict=True):
        for columns_of_one in columns:
            panel = picture[np.ix_(rows_of_one, columns_of_one)]
            near = np.abs(255 * panel - np.array(colour)).max(axis=2) < 8
            assert near.sum() > 200


def test_the_caption_says_every_choice() -> None:
    found = of_image(trace(), 0, PAPER)
    told = vote_distance_figure.caption(found, PAPER)
    for choice in ("squared distance", "coordinates added", "assignment R", "12 bins on [0, 0.05]"):
        assert choice in told
    assert "% of the weight is beyond" in told
    assert "log scale" in vote_distance_figure.caption(found, Asked("R", "plain", 12, None))
