"""Inverted dot-product attention against its equations, and its laws.

Shape letters: B batch, I children, J parents, D parent pose, T iterations.
"""

import itertools
import math
from functools import partial

import pytest
import routing_oracles as oracles
from hypothesis import given
from laws import at_most_examples
from routing_oracles import Image, RoutedImage, Shape, any_seed, any_size, cast
from routing_variants import assert_same, iterations, normal
from torch import Tensor
from torch.nn import functional as F

from capsweep.model.capsules import squash
from capsweep.model.routing import Routed, dynamic, inverted_attention

law = at_most_examples(25)


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


def route(u_BIJD: Tensor, num_iters: int, shift: float = 0.0) -> Routed:
    gain_D = u_BIJD.new_ones(u_BIJD.shape[3])
    return inverted_attention.reference(
        cast(u_BIJD), num_iters, gain_D, shift * gain_D, with_trace=True
    )


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


@law
@given(any_size, any_seed)
def test_one_iteration_normalises_the_mean_vote(size: tuple[int, ...], seed: int) -> None:
    batch, children, parents, _, numbers = size
    u_BIJD = normal(seed)(batch, children, parents, numbers + 1)
    expected_BJD = F.layer_norm(u_BIJD.sum(dim=1) / parents, (numbers + 1,))
    assert_same(route(u_BIJD, 1).pose_BJD, expected_BJD)


@iterations
def test_negative_votes_have_negative_parents_unless_there_is_a_shift(num_iters: int) -> None:
    u_BIJD = normal(0)(2, 7, 3, 4)
    one, other = route(u_BIJD, num_iters), route(-u_BIJD, num_iters)
    assert_same(one.pose_BJD, -other.pose_BJD)
    assert_same(one.coupling_BIJ, other.coupling_BIJ)
    shifted = [route(sign * u_BIJD, num_iters, shift=0.5).pose_BJD for sign in (1, -1)]
    assert (shifted[0] + shifted[1]).abs().max() > 0.1


def test_an_iteration_reads_nothing_but_the_parents_of_the_last_and_comes_to_rest() -> None:
    u_BIJD = normal(0)(2, 16, 3, 4)
    trace = route(u_BIJD, 200).trace
    for before, after in itertools.pairwise(trace):
        agreement_BIJ = (u_BIJD * before["pose"]).sum(dim=3) / 2
        assert_same(after["coupling"][:, 0], agreement_BIJ.softmax(dim=2))
    assert_same(trace[-1]["pose"], trace[-2]["pose"])
    assert trace[-1]["coupling"].amax(dim=3).mean() < 0.9


def test_with_a_squash_in_place_of_layer_norm_two_iterations_are_those_of_dynamic_routing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    u_BIJD = normal(0)(2, 7, 3, 4)
    monkeypatch.setattr(inverted_attention, "_normalise", lambda s, gain, shift: 2 * squash(s))
    expected = dynamic.reference(cast(u_BIJD), 2)
    routed = route(u_BIJD, 2)
    assert_same(routed.coupling_BIJ, expected.coupling_BIJ)
    assert_same(routed.pose_BJD, 2 * expected.pose_BJD)
