"""Dynamic routing against procedure 1, written out: every option. Other implementations than the
reference are held to it by test_parity, other normalisers are in test_normalisers.

Shape letters: B batch, I L children, J parents, P child pose, D parent pose, T iterations.
"""

import itertools
from functools import partial
from typing import Any

import pytest
import routing_oracles as oracles
import torch
from routing_oracles import Image, RoutedImage, Shape
from routing_variants import assert_same, iterations, normal
from torch import Tensor

from capsweep.model.routing.dynamic import IMPLS, DynamicRouting, reference
from capsweep.model.votes import LocalVotes, split_images

# bias, prior, none of the above.
COMBINATIONS = list(itertools.product([False, True], repeat=3))
every_combination = pytest.mark.parametrize("chosen", COMBINATIONS, ids=str)
Chosen = tuple[bool, bool, bool]


def leave_some(logits: Tensor) -> Tensor:
    """The shares of a child, none of the above another one of logit 0."""
    return oracles.softmax(torch.cat([logits, logits.new_zeros(1)]))[:-1]


def procedure_1(
    image: Image, bias_JD: Tensor, prior_LJ: Tensor, num_iters: int, chosen: Chosen
) -> RoutedImage:
    with_bias, with_prior, with_none = chosen
    logit, found = oracles.zeros(image), RoutedImage({}, {}, {})
    if with_prior:
        logit = {link: prior_LJ[link.local, link.parent[1]] for link in image.vote}
    for _ in range(num_iters):
        coupling = oracles.divide(logit, "all", leave_some if with_none else oracles.softmax)
        found = oracles.shrink(image, coupling, bias_JD if with_bias else None)
        logit = {x: logit[x] + (u * found.pose[x.parent]).sum() for x, u in image.vote.items()}
    return found


def draw_own(votes: LocalVotes) -> tuple[Tensor, Tensor]:
    """Bias and log priors."""
    draw, sizes = normal(1), oracles.sizes_of(votes)
    return draw(sizes.parents, sizes.parent_pose), draw(sizes.children, sizes.parents)


def choose(chosen: Chosen, bias_JD: Tensor, prior_LJ: Tensor) -> dict[str, Any]:
    """The options of an implementation."""
    with_bias, with_prior, with_none = chosen
    return {
        "bias_JD": bias_JD if with_bias else None,
        "prior_LJ": prior_LJ if with_prior else None,
        "none_of_the_above": with_none,
    }


@oracles.every_shape
@iterations
@every_combination
def test_parents_couplings_and_gradients_are_those_of_procedure_1(
    shape: Shape, num_iters: int, chosen: Chosen
) -> None:
    votes = oracles.draw_votes(shape)
    oracles.assert_follows(
        lambda votes, *own: reference(votes, num_iters, with_trace=True, **choose(chosen, *own)),
        partial(procedure_1, num_iters=num_iters, chosen=chosen),
        votes,
        *draw_own(votes),
    )


@iterations
@every_combination
def test_the_last_gradient_is_that_of_one_iteration_with_agreements_that_have_no_past(
    num_iters: int, chosen: Chosen
) -> None:
    votes = oracles.draw_votes((2, 4, 3, 2, 3))
    own = [tensor.requires_grad_() for tensor in draw_own(votes)]
    leaves, options = [*oracles.leaves_of(votes), *own], choose(chosen, *own)
    routed = reference(votes, num_iters, gradient="last", with_trace=True, **options)
    # One iteration whose prior is what the iterations before have added up to.
    agreements = [step["agreement"][:, 0] for step in routed.trace[:-1]]
    past_BIJ = torch.stack([torch.zeros(2, 4, 3).double(), *agreements]).sum(dim=0).detach()
    poses = []
    for alone, past_IJ in zip(split_images(votes, 1), past_BIJ, strict=True):
        prior_IJ = past_IJ if options["prior_LJ"] is None else past_IJ + options["prior_LJ"]
        poses.append(reference(alone, 1, **{**options, "prior_LJ": prior_IJ}).pose_BJD)
    pair = routed.pose_BJD, torch.cat(poses)
    assert_same(*pair)
    for one, other in zip(*(oracles.differentiate([x], leaves) for x in pair), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("gradient", ["full", "last"])
def test_the_layer_routes_with_its_own_parameters_and_options(gradient: str) -> None:
    votes = oracles.draw_votes((2, 5, 3, 4, 2))
    leaves, own = oracles.leaves_of(votes)[1:2], draw_own(votes)
    chosen = {"none_of_the_above": True, "learned_prior": True, "gradient": gradient}
    module = DynamicRouting(2, True, "fast", **chosen, sizes=oracles.sizes_of(votes)).double()
    assert not module.prior_IJ.any()  # at first
    with torch.no_grad():
        module.bias_JD.copy_(own[0])
        module.prior_IJ.copy_(own[1])
    options = choose((True, True, True), *own) | {"gradient": gradient}
    poses = [IMPLS["fast"](votes, 2, **options).pose_BJD, module(votes).pose_BJD]
    assert torch.equal(*poses)
    assert torch.equal(*(torch.autograd.grad(pose.sum(), leaves)[0] for pose in poses))
