"""What sets each variant of routing apart, beside its equations.

Shape letters: B batch, I L children, J parents, P child pose, D parent pose, M parent positions.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import routing_oracles as oracles
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from routing_oracles import Shape, any_seed, any_size, cast
from routing_variants import assert_same, iterations, normal
from torch import Tensor

from capsweep.model.routing import (
    em,
    heinsen,
    inverted_attention,
    k_means,
    sda,
    self_attention,
    self_routing,
    variational_bayes,
)
from capsweep.model.votes import LocalVotes, Votes


@iterations
def test_at_first_and_without_present_children_all_parents_are_at_one_half(num_iters: int) -> None:
    votes = oracles.draw_votes((2, 20, 3, 4, 5))
    module = heinsen.HeinsenRouting(num_iters, "reference", sizes=oracles.sizes_of(votes)).double()
    half_BJ = torch.full((2, 3), 0.5, dtype=torch.float64)
    assert torch.equal(module(votes).act_BJ, half_BJ)
    silent = replace(votes, activation_BI=torch.zeros_like(votes.activation_BI))
    routed = heinsen.reference(silent, num_iters, *normal(1)(2, 20, 3))
    assert torch.equal(routed.act_BJ, half_BJ)
    assert not routed.pose_BJD.any()


def test_an_iteration_reads_nothing_but_the_parents_of_the_last_and_comes_to_rest() -> None:
    u_BIJD = normal(0)(2, 16, 3, 4)
    one_D = u_BIJD.new_ones(4)
    trace = inverted_attention.reference(cast(u_BIJD), 200, one_D, 0 * one_D, with_trace=True).trace
    for before, after in itertools.pairwise(trace):
        agreement_BIJ = (u_BIJD * before["pose"]).sum(dim=3) / 2
        assert_same(after["coupling"][:, 0], agreement_BIJ.softmax(dim=2))
    assert_same(trace[-1]["pose"], trace[-2]["pose"])
    assert trace[-1]["coupling"].amax(dim=3).mean() < 0.9


def objective(votes: LocalVotes, coupling_BMLJ: Tensor, pose_BMJD: Tensor) -> Tensor:
    """Of each image."""
    direction_BMJD = pose_BMJD / pose_BMJD.norm(dim=3, keepdim=True)
    agreement_BMLJ = (votes.form_local() * direction_BMJD[:, :, None]).sum(dim=4)
    entropy_BMLJ = -torch.xlogy(coupling_BMLJ, coupling_BMLJ)
    return -(coupling_BMLJ * agreement_BMLJ + entropy_BMLJ).sum(dim=(1, 2, 3))


@at_most_examples(25)
@given(st.none() | any_size, any_seed, st.sampled_from([0.1, 1.0, 10.0]))
def test_no_iteration_raises_the_objective(shape: Shape, seed: int, scale: float) -> None:
    votes = oracles.draw_votes(shape, seed, scale)
    steps: Any = k_means.reference(votes, 12, with_trace=True).trace
    values = [objective(votes, step["coupling"], step["pose"]) for step in steps]
    for before_B, after_B in itertools.pairwise(values):
        assert (after_B <= before_B + 1e-12 * (1 + before_B.abs())).all()


@pytest.mark.parametrize("parents", [2, 3, 7])
def test_a_parent_at_half_the_mean_distance_has_nine_tenths_whatever_the_scale_of_an_image(
    parents: int,
) -> None:
    # Opposite votes, so that parents are at 0, of length 1 but for one parent of the first two.
    u_IJD = torch.nn.functional.normalize(normal(0)(2, parents, 3), dim=2).repeat(2, 1, 1)
    u_IJD[:, 0] *= torch.tensor([0.5, 1.5, 0.5, 1.5])[:, None]
    u_IJD[2:] *= -1
    u_BIJD = torch.stack([u_IJD, 100 * u_IJD, 0.01 * u_IJD])
    coupling_BIJ = sda.reference(cast(u_BIJD), 2, clip=False).coupling_BIJ
    for child in (0, 2):
        assert_same(coupling_BIJ[:, child, 0], torch.full((3,), 0.9, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 0.9e-4, 1.1e-4, 1e-3, 1.0, 1e3])
def test_the_one_parent_is_the_squashed_sum_of_all_votes_however_short(scale: float) -> None:
    u_BIJD = scale * normal(0)(1, 4, 1, 3)
    s_D = u_BIJD.sum(dim=(0, 1, 2))
    length = s_D.norm().item()
    expected_D = -math.expm1(-length) * s_D / length
    pose_D = self_attention.reference(cast(u_BIJD), torch.zeros(4, 1)).pose_BJD[0, 0]
    torch.testing.assert_close(pose_D, expected_D, rtol=1e-12, atol=0)


def test_a_child_without_activation_can_be_removed() -> None:
    votes, draw = oracles.draw_votes((2, 7, 3, 4, 5)), normal(1)
    gate_LJP, bias_LJ = draw(7, 3, 4), draw(7, 3)
    votes.activation_BI[:, 2] = 0
    kept = [0, 1, 3, 4, 5, 6]
    poses, weights = votes.pose_BIP[:, kept], votes.weight_IJDP[kept]
    fewer = Votes(poses, weights, votes.activation_BI[:, kept])
    one = self_routing.reference(votes, gate_LJP, bias_LJ)
    other = self_routing.reference(fewer, gate_LJP[kept], bias_LJ[kept])
    assert_same(one.pose_BJD, other.pose_BJD)
    assert_same(one.act_BJ, other.act_BJ)


@iterations
def test_of_many_children_without_priors_means_are_those_of_em_routing(num_iters: int) -> None:
    draw = normal(0)
    u_BIJD = draw(1, 20_000, 3, 2) + 0.5 * draw(3, 2)
    zero_J = torch.zeros(3, dtype=torch.float64)
    mixing = em.EMProcedure(1.0, floor=1e-9, activation="mixing")
    expected = em.reference(cast(u_BIJD), num_iters, zero_J, zero_J, procedure=mixing)
    own = normal(1)(2, 3)
    found = variational_bayes.reference(cast(u_BIJD), num_iters, *own, kappa=1e-9, psi=1e-9)
    torch.testing.assert_close(found.pose_BJD, expected.pose_BJD, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.coupling_BIJ, expected.coupling_BIJ, rtol=0, atol=2e-3)
