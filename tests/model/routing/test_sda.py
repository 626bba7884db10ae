"""Scaled distance agreement against its equations.

Shape letters: B batch, I L children, J parents, D parent pose.
"""

import math
from functools import partial

import pytest
import routing_oracles as oracles
import torch
from routing_oracles import Image, RoutedImage, Shape, cast
from routing_variants import assert_same, iterations, normal
from torch import Tensor

from capsweep.model.routing.sda import SDARouting, reference

with_and_without_clip = pytest.mark.parametrize("clip", [True, False])


def measure(x: Tensor) -> Tensor:
    return (x * x).sum().sqrt()


def agree(image: Image, bias_JD: Tensor, num_iters: int, clip: bool) -> RoutedImage:
    votes = {}
    for link, vote in image.vote.items():
        longest, length = measure(image.pose[link.child]), measure(vote)
        votes[link] = vote * torch.minimum(length, longest) / length if clip else vote
    image, logit = image._replace(vote=votes), oracles.zeros(image)
    parents, found = len(bias_JD), RoutedImage({}, {}, {})
    for _ in range(num_iters):
        found = oracles.shrink(image, oracles.divide(logit, "all"), bias_JD)
        distance = {x: measure(found.pose[x.parent] - vote) for x, vote in votes.items()}
        mean = sum(distance.values()) / len(distance)
        scale = 0.0
        if parents > 1:
            scale = (math.log(0.9 * (parents - 1)) - math.log(0.1)) / (0.5 * mean - mean)
        logit = {link: scale * d for link, d in distance.items()}
    return found


@oracles.every_shape
@iterations
@with_and_without_clip
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, num_iters: int, clip: bool
) -> None:
    votes = oracles.draw_votes(shape)
    layer = SDARouting(num_iters, True, clip, "reference", sizes=oracles.sizes_of(votes))
    oracles.assert_layer_follows(layer, partial(agree, num_iters=num_iters, clip=clip), votes)


@pytest.mark.parametrize("parents", [2, 3, 7])
def test_a_parent_at_half_the_mean_distance_has_nine_tenths_whatever_the_scale_of_an_image(
    parents: int,
) -> None:
    # Opposite votes, so that parents are at 0, of length 1 but for one parent of the first two.
    u_IJD = torch.nn.functional.normalize(normal(0)(2, parents, 3), dim=2).repeat(2, 1, 1)
    u_IJD[:, 0] *= torch.tensor([0.5, 1.5, 0.5, 1.5])[:, None]
    u_IJD[2:] *= -1
    u_BIJD = torch.stack([u_IJD, 100 * u_IJD, 0.01 * u_IJD])
    coupling_BIJ = reference(cast(u_BIJD), 2, clip=False).coupling_BIJ
    for child in (0, 2):
        assert_same(coupling_BIJ[:, child, 0], torch.full((3,), 0.9, dtype=torch.float64))
