"""Self-routing against its equations, and its laws.

Shape letters: B batch, I L children, J parents, P child pose, D parent pose.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import routing_oracles as oracles
import torch
from hypothesis import given
from laws import at_most_examples
from routing_oracles import Image, RoutedImage, Shape, any_seed, any_size
from routing_variants import assert_same, normal
from torch import Tensor

from capsweep.model.routing import self_routing
from capsweep.model.routing.self_routing import SelfRouting, reference
from capsweep.model.votes import Votes

law = at_most_examples(25)
SIZE = 2, 7, 3, 4, 5
assert_nearly_same = partial(torch.testing.assert_close, rtol=0, atol=1e-5)


def gate(image: Image, gate_LJP: Tensor, bias_LJ: Tensor) -> RoutedImage:
    logit = {}
    for link in image.vote:
        place = link.local, link.parent[1]
        logit[link] = (gate_LJP[place] * image.pose[link.child]).sum() + bias_LJ[place]
    coupling = oracles.divide(logit, "types")
    weight = {link: image.activation[link.child] * c for link, c in coupling.items()}
    mass, total = (
        oracles.add_up(weight),
        oracles.add_up({link: image.activation[link.child] for link in weight}),
    )
    pose = {parent: s / mass[parent] for parent, s in oracles.add_votes(image, weight).items()}
    return RoutedImage(coupling, pose, {parent: mass[parent] / total[parent] for parent in mass})


def draw_own(votes: Votes) -> tuple[Tensor, Tensor]:
    draw, sizes = normal(1), oracles.sizes_of(votes)
    links = sizes.children, sizes.parents
    return draw(*links, sizes.child_pose), draw(*links)


def route(votes: Votes, own: tuple[Tensor, Tensor] | None = None) -> Any:
    return reference(votes, *(draw_own(votes) if own is None else own), with_trace=True)


@oracles.every_shape
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_routing, "SMALLEST_MASS", 0.0)
    votes = oracles.draw_votes(shape)
    layer = SelfRouting("reference", sizes=oracles.sizes_of(votes))
    oracles.assert_layer_follows(layer, gate, votes)


@law
@given(any_size, any_seed)
def test_at_first_parents_are_equally_active_means_of_the_votes_of_present_children(
    size: tuple[int, ...], seed: int
) -> None:
    votes = oracles.draw_votes(size, seed)
    routed = SelfRouting("reference", sizes=oracles.sizes_of(votes)).double()(votes)
    assert_same(routed.coupling_BIJ, torch.full_like(routed.coupling_BIJ, 1 / size[2]))
    assert_same(routed.act_BJ, torch.full_like(routed.act_BJ, 1 / size[2]))
    share_BI = votes.activation_BI / votes.activation_BI.sum(dim=1, keepdim=True)
    mean_BJD = torch.einsum("bi,bijd->bjd", share_BI, votes.dense())
    torch.testing.assert_close(routed.pose_BJD, mean_BJD, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_only_the_ratios_of_activations_matter(factor: float) -> None:
    votes = oracles.draw_votes(SIZE)
    other = route(replace(votes, activation_BI=factor * votes.activation_BI))
    assert_nearly_same(route(votes).act_BJ, other.act_BJ)
    assert_nearly_same(route(votes).pose_BJD, other.pose_BJD)


def test_a_child_without_activation_can_be_removed() -> None:
    votes, (gate_LJP, bias_LJ) = oracles.draw_votes(SIZE), draw_own(oracles.draw_votes(SIZE))
    votes.activation_BI[:, 2] = 0
    kept = [0, 1, 3, 4, 5, 6]
    poses, weights = votes.pose_BIP[:, kept], votes.weight_IJDP[kept]
    fewer = Votes(poses, weights, votes.activation_BI[:, kept])
    one, other = route(votes), route(fewer, (gate_LJP[kept], bias_LJ[kept]))
    assert_same(one.pose_BJD, other.pose_BJD)
    assert_same(one.act_BJ, other.act_BJ)


def test_a_child_decides_alone_and_by_its_pose_alone() -> None:
    votes, other = oracles.draw_votes(SIZE), oracles.draw_votes(SIZE, seed=1)
    coupling_BIJ = route(votes).coupling_BIJ
    pose_BIP = torch.cat([votes.pose_BIP[:, :1], other.pose_BIP[:, 1:]], dim=1)
    changed = route(Votes(pose_BIP, other.weight_IJDP, other.activation_BI)).coupling_BIJ
    assert torch.equal(changed[:, 0], coupling_BIJ[:, 0])
    assert (changed - coupling_BIJ)[:, 1:].abs().amax(dim=(0, 2)).min() > 0.01
