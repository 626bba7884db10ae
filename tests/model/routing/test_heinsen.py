"""Heinsen routing against its equations.

Shape letters: B batch, I L children, J parents, D parent pose.
"""

from dataclasses import replace
from functools import partial

import routing_oracles as oracles
import torch
from routing_oracles import Image, RoutedImage, Shape
from routing_variants import iterations, normal
from torch import Tensor

from capsweep.model.routing.heinsen import HeinsenRouting, reference

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


@oracles.every_shape
@iterations
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, num_iters: int
) -> None:
    votes = oracles.draw_votes(shape)
    layer = HeinsenRouting(num_iters, "reference", sizes=oracles.sizes_of(votes))
    oracles.assert_layer_follows(layer, partial(price, num_iters=num_iters), votes)


@iterations
def test_at_first_and_without_present_children_all_parents_are_at_one_half(num_iters: int) -> None:
    votes = oracles.draw_votes(SIZE)
    module = HeinsenRouting(num_iters, "reference", sizes=oracles.sizes_of(votes)).double()
    half_BJ = torch.full((2, 3), 0.5, dtype=torch.float64)
    assert torch.equal(module(votes).act_BJ, half_BJ)
    silent = replace(votes, activation_BI=torch.zeros_like(votes.activation_BI))
    routed = reference(silent, num_iters, *normal(1)(2, 20, 3))
    assert torch.equal(routed.act_BJ, half_BJ)
    assert not routed.pose_BJD.any()
