"""Heinsen routing against its equations, and its laws.

Shape letters: B batch, I L children, J parents, D parent pose.
"""

from dataclasses import replace
from functools import partial

import routing_oracles as oracles
import torch
from hypothesis import given
from laws import at_most_examples
from routing_oracles import Image, RoutedImage, Shape, any_seed, any_size, cast
from routing_variants import assert_same, iterations, normal
from torch import Tensor

from capsweep.model.routing.heinsen import HeinsenRouting, reference
from capsweep.model.votes import Votes

law = at_most_examples(25)
SIZE = 2, 20, 3, 4, 5


def price(image: Image, use_LJ: Tensor, ignore_LJ: Tensor, num_iters: int) -> RoutedImage:
    logit, assigned, mean, score = oracles.zeros(image), {}, {}, {}
    for _ in range(num_iters):
        assigned = oracles.divide(logit, "types")
        benefit, used = {}, {}
        for link, share in assigned.items():
            place, active = (link.local, link.parent[1]), image.activation[link.child]
            used[link] = active * share
            benefit[link] = use_LJ[place] * used[link] - ignore_LJ[place] * (active - used[link])
        score = oracles.add_up(benefit)
        mass = {parent: m + 1e-5 for parent, m in oracles.add_up(used).items()}
        mean = {parent: s / mass[parent] for parent, s in oracles.add_votes(image, used).items()}
        square = {link: (vote - mean[link.parent]) ** 2 for link, vote in image.vote.items()}
        spread = oracles.add_up({link: used[link] * square[link] for link in square})
        variance = {parent: s / mass[parent] + 1e-5 for parent, s in spread.items()}
        for link in logit:
            deviations = variance[link.parent].sqrt()
            logit[link] = score[link.parent].sigmoid().log() - deviations.log().sum()
            logit[link] = logit[link] - (square[link] / (2 * variance[link.parent])).sum()
    return RoutedImage(assigned, mean, {parent: z.sigmoid() for parent, z in score.items()})


def draw_own(votes: Votes) -> tuple[Tensor, Tensor]:
    draw, sizes = normal(1), oracles.sizes_of(votes)
    return draw(sizes.children, sizes.parents), draw(sizes.children, sizes.parents)


@oracles.every_shape
@iterations
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, num_iters: int
) -> None:
    votes = oracles.draw_votes(shape)
    layer = HeinsenRouting(num_iters, "reference", sizes=oracles.sizes_of(votes))
    oracles.assert_layer_follows(layer, partial(price, num_iters=num_iters), votes)


@law
@given(any_size, any_seed)
@iterations
def test_what_of_a_child_is_not_used_is_ignored(
    num_iters: int, size: tuple[int, ...], seed: int
) -> None:
    votes = oracles.draw_votes(size, seed)
    one_LJ = torch.ones(size[1], size[2], dtype=torch.float64)
    both_BJ = reference(votes, num_iters, one_LJ, -one_LJ).logit_BJ
    assert_same(both_BJ, votes.activation_BI.sum(dim=1, keepdim=True).expand_as(both_BJ))


@iterations
def test_prices_of_parents_price_the_sum_of_what_they_use(num_iters: int) -> None:
    votes, (use_J, ignore_J) = oracles.draw_votes(SIZE), normal(1)(2, 3)
    routed = reference(votes, num_iters, use_J.expand(20, 3), ignore_J.expand(20, 3))
    used_BJ = torch.einsum("bi,bij->bj", votes.activation_BI, routed.coupling_BIJ)
    all_B1 = votes.activation_BI.sum(dim=1, keepdim=True)
    assert_same(routed.logit_BJ, (use_J + ignore_J) * used_BJ - ignore_J * all_B1)
    assert_same(routed.act_BJ, routed.logit_BJ.sigmoid())


@iterations
def test_at_first_and_without_present_children_all_parents_are_at_one_half(num_iters: int) -> None:
    votes = oracles.draw_votes(SIZE)
    module = HeinsenRouting(num_iters, "reference", sizes=oracles.sizes_of(votes)).double()
    half_BJ = torch.full((2, 3), 0.5, dtype=torch.float64)
    assert torch.equal(module(votes).act_BJ, half_BJ)
    silent = replace(votes, activation_BI=torch.zeros_like(votes.activation_BI))
    routed = reference(silent, num_iters, *draw_own(votes))
    assert torch.equal(routed.act_BJ, half_BJ)
    assert not routed.pose_BJD.any()


@iterations
def test_parents_move_with_the_votes_nearly_and_turn_negative_with_them(num_iters: int) -> None:
    u_BIJD, own = normal(0)(2, 20, 3, 4), draw_own(oracles.draw_votes(SIZE))
    shift_JD = normal(2)(3, 4)
    one, moved, negative = (
        reference(cast(x), num_iters, *own) for x in (u_BIJD, u_BIJD + shift_JD, -u_BIJD)
    )
    torch.testing.assert_close(moved.pose_BJD, one.pose_BJD + shift_JD, rtol=0, atol=1e-4)
    torch.testing.assert_close(moved.act_BJ, one.act_BJ, rtol=0, atol=1e-4)
    assert_same(negative.pose_BJD, -one.pose_BJD)
    assert_same(negative.coupling_BIJ, one.coupling_BIJ)
