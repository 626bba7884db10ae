"""Self-attention routing against its equations.

Shape letters: B batch, I L children, J parents, D parent pose.
"""

import math
from functools import partial

import pytest
import routing_oracles as oracles
import torch
from routing_oracles import Image, RoutedImage, Shape, cast
from routing_variants import normal
from torch import Tensor

from capsweep.model.routing.self_attention import SelfAttentionRouting, reference

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


@oracles.every_shape
@every_scale
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, scale: str
) -> None:
    votes = oracles.draw_votes(shape)
    layer = SelfAttentionRouting(scale, "reference", sizes=oracles.sizes_of(votes))
    oracles.assert_layer_follows(layer, partial(attend, scale=scale), votes)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 0.9e-4, 1.1e-4, 1e-3, 1.0, 1e3])
def test_the_one_parent_is_the_squashed_sum_of_all_votes_however_short(scale: float) -> None:
    u_BIJD = scale * normal(0)(1, 4, 1, 3)
    s_D = u_BIJD.sum(dim=(0, 1, 2))
    length = s_D.norm().item()
    expected_D = -math.expm1(-length) * s_D / length
    pose_D = reference(cast(u_BIJD), torch.zeros(4, 1)).pose_BJD[0, 0]
    torch.testing.assert_close(pose_D, expected_D, rtol=1e-12, atol=0)
