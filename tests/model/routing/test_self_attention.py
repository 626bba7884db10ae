"""Self-attention routing against its equations, and its laws.

Shape letters: B batch, I L children, J parents, D parent pose.
"""

import math
from functools import partial

import pytest
import routing_oracles as oracles
import torch
from hypothesis import given
from laws import at_most_examples
from routing_oracles import Image, RoutedImage, Shape, any_seed, any_size, cast
from routing_variants import assert_same, normal
from torch import Tensor

from capsweep.model.routing import Routed
from capsweep.model.routing.self_attention import SelfAttentionRouting, reference

law = at_most_examples(25)
every_scale = pytest.mark.parametrize("scale", ["pose", "children"])


def shrink_exponentially(s: Tensor) -> Tensor:
    length = (s * s).sum().sqrt()
    return (1 - (-length).exp()) * s / length


def attend(image: Image, beta_LJ: Tensor, scale: str) -> RoutedImage:
    logit = {}
    for link, vote in image.vote.items():
        row = [(vote * u).sum() for x, u in image.vote.items() if x.parent == link.parent]
        logit[link] = sum(row) / math.sqrt(len(vote)) / (len(row) if scale == "children" else 1)
    shares = oracles.divide(logit, "all")
    coupling = {x: c + beta_LJ[x.local, x.parent[1]] for x, c in shares.items()}
    pose = {
        parent: shrink_exponentially(s) for parent, s in oracles.add_votes(image, coupling).items()
    }
    return RoutedImage(coupling, pose, {parent: (v * v).sum().sqrt() for parent, v in pose.items()})


def route(u_BIJD: Tensor, with_beta: bool = True) -> Routed:
    links = u_BIJD.shape[1:3]
    return reference(cast(u_BIJD), with_beta * normal(9)(*links), with_trace=True)


@oracles.every_shape
@every_scale
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, scale: str
) -> None:
    votes = oracles.draw_votes(shape)
    layer = SelfAttentionRouting(scale, "reference", sizes=oracles.sizes_of(votes))
    oracles.assert_layer_follows(layer, partial(attend, scale=scale), votes)


@law
@given(any_size, any_seed)
def test_parents_turn_with_the_votes_and_their_length_is_below_one(
    size: tuple[int, ...], seed: int
) -> None:
    batch, children, parents, _, numbers = size
    u_BIJD, turn_DD = (
        normal(seed)(batch, children, parents, numbers),
        oracles.draw_rotation(numbers, seed),
    )
    one, turned = route(u_BIJD), route(u_BIJD @ turn_DD)
    assert_same(turned.coupling_BIJ, one.coupling_BIJ)
    assert_same(turned.pose_BJD, one.pose_BJD @ turn_DD)
    assert_same(route(-u_BIJD).pose_BJD, -one.pose_BJD)
    assert (one.act_BJ < 1).all()
    assert_same(one.act_BJ, one.pose_BJD.norm(dim=2))


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 0.9e-4, 1.1e-4, 1e-3, 1.0, 1e3])
def test_the_one_parent_is_the_squashed_sum_of_all_votes_however_short(scale: float) -> None:
    u_BIJD = scale * normal(0)(1, 4, 1, 3)
    s_D = u_BIJD.sum(dim=(0, 1, 2))
    length = s_D.norm().item()
    expected_D = -math.expm1(-length) * s_D / length
    pose_D = route(u_BIJD, with_beta=False).pose_BJD[0, 0]
    torch.testing.assert_close(pose_D, expected_D, rtol=1e-12, atol=0)
