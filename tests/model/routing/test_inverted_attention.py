"""Inverted dot-product attention against its equations.

Shape letters: B batch, I children, J parents, D parent pose, T iterations.
"""

import itertools
import math
from functools import partial

import routing_oracles as oracles
from routing_oracles import Image, RoutedImage, Shape, cast
from routing_variants import assert_same, iterations, normal
from torch import Tensor

from capsweep.model.routing import inverted_attention


def attend(image: Image, gain_D: Tensor, shift_D: Tensor, num_iters: int) -> RoutedImage:
    numbers, logit = len(gain_D), oracles.zeros(image)
    coupling, pose = {}, {}
    for _ in range(num_iters):
        coupling, pose = oracles.divide(logit, "types"), {}
        for parent, s in oracles.add_votes(image, coupling).items():
            centred = s - s.sum() / numbers
            sd = ((centred * centred).sum() / numbers + 1e-5).sqrt()
            pose[parent] = s if numbers == 1 else gain_D * centred / sd + shift_D
        logit = {x: (u * pose[x.parent]).sum() / math.sqrt(numbers) for x, u in image.vote.items()}
    return RoutedImage(coupling, pose, {parent: v.new_ones(()) for parent, v in pose.items()})


@oracles.every_shape
@iterations
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, num_iters: int
) -> None:
    votes = oracles.draw_votes(shape)
    layer = inverted_attention.InvertedAttentionRouting(
        num_iters, "reference", sizes=oracles.sizes_of(votes)
    )
    oracles.assert_layer_follows(layer, partial(attend, num_iters=num_iters), votes)


def test_an_iteration_reads_nothing_but_the_parents_of_the_last_and_comes_to_rest() -> None:
    u_BIJD = normal(0)(2, 16, 3, 4)
    one_D = u_BIJD.new_ones(4)
    trace = inverted_attention.reference(cast(u_BIJD), 200, one_D, 0 * one_D, with_trace=True).trace
    for before, after in itertools.pairwise(trace):
        agreement_BIJ = (u_BIJD * before["pose"]).sum(dim=3) / 2
        assert_same(after["coupling"][:, 0], agreement_BIJ.softmax(dim=2))
    assert_same(trace[-1]["pose"], trace[-2]["pose"])
    assert trace[-1]["coupling"].amax(dim=3).mean() < 0.9
