"""`gradient: last`: the value of all iterations, the gradient of the last one.

Earlier iterations only choose couplings. So the agreements that they add to the logits are numbers;
what is differentiated is prior, softmax, weighted sum, bias and squash of the last iteration.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from procedure_1 import Layer, layer
from routing_variants import anywhere
from torch import Tensor

from capsweep.model.routing.dynamic import IMPLS
from capsweep.model.votes import Routed, Votes

SIZE = (2, 4, 3, 2, 3)

every_impl = pytest.mark.parametrize("impl", anywhere(IMPLS))
with_and_without_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
with_and_without_prior = pytest.mark.parametrize("prior", [True, False], ids=["prior", "zero"])
with_and_without_none = pytest.mark.parametrize("none", [True, False], ids=["none-above", "all"])
iterations = pytest.mark.parametrize("num_iters", [1, 2, 3])


def inputs_of(chosen: Layer, bias: bool, prior: bool) -> list[Tensor]:
    """Poses and weights, and bias and priors where used, to be differentiated."""
    used = [*chosen[:2], *itertools.compress(chosen[2:], [bias, prior])]
    return [x.clone().requires_grad_() for x in used]


def router(impl: str, num_iters: int, bias: bool, prior: bool, none: bool) -> Callable[..., Routed]:
    """Routes `inputs_of` with a gradient."""

    def routed(inputs: Sequence[Tensor], gradient: str) -> Routed:
        pose_BIP, weight_IJDP, *rest = inputs
        return IMPLS[impl](
            Votes(pose_BIP, weight_IJDP),
            num_iters,
            rest[0] if bias else None,
            prior_LJ=rest[-1] if prior else None,
            none_of_the_above=none,
            gradient=gradient,
        )

    return routed


def agreement(
    inputs: Sequence[Tensor], num_iters: int, bias: bool, prior: bool, none: bool
) -> Tensor:
    """What all iterations before the last add to the logits [B, I, J]: numbers without a past."""
    found_BIJ = inputs[0].new_zeros(inputs[0].shape[0], *inputs[1].shape[:2])
    with torch.no_grad():
        votes_BIJD = torch.einsum("bip,ijdp->bijd", inputs[0], inputs[1])
        for _ in range(num_iters - 1):
            pose_BJD = last_iteration(inputs, found_BIJ, bias, prior, none)
            found_BIJ = found_BIJ + torch.einsum("bijd,bjd->bij", votes_BIJD, pose_BJD)
    return found_BIJ


def last_iteration(
    inputs: Sequence[Tensor], agreement_BIJ: Tensor, bias: bool, prior: bool, none: bool
) -> Tensor:
    """Parent poses [B, J, D] of one iteration whose logits are prior plus agreement."""
    pose_BIP, weight_IJDP, *rest = inputs
    votes_BIJD = torch.einsum("bip,ijdp->bijd", pose_BIP, weight_IJDP)
    odds_BIJ = (agreement_BIJ + rest[-1] if prior else agreement_BIJ).exp()
    coupling_BIJ = odds_BIJ / (odds_BIJ.sum(dim=2, keepdim=True) + none)
    s_BJD = torch.einsum("bij,bijd->bjd", coupling_BIJ, votes_BIJD)
    s_BJD = s_BJD + rest[0] if bias else s_BJD
    squared_BJ1 = s_BJD.square().sum(dim=2, keepdim=True)
    return squared_BJ1 / (1 + squared_BJ1) * s_BJD / squared_BJ1.sqrt()


def loss(pose_BJD: Tensor) -> Tensor:
    """A number that every component of every parent moves, each by its own amount."""
    return (pose_BJD * torch.linspace(-1, 2, pose_BJD.numel()).view_as(pose_BJD)).sum()


def gradients(value: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of one number with respect to each input."""
    return torch.autograd.grad(value, inputs)


@every_impl
@iterations
@with_and_without_bias
@with_and_without_prior
@with_and_without_none
def test_the_value_is_that_of_the_full_gradient(
    impl: str, num_iters: int, bias: bool, prior: bool, none: bool
) -> None:
    inputs, route = inputs_of(layer(SIZE), bias, prior), router(impl, num_iters, bias, prior, none)
    last, full = route(inputs, "last"), route(inputs, "full")
    for one, other in zip(last[:3], full[:3], strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other)


@every_impl
@iterations
@with_and_without_bias
@with_and_without_prior
@with_and_without_none
def test_the_gradient_is_that_of_the_last_iteration_with_agreements_that_have_no_past(
    impl: str, num_iters: int, bias: bool, prior: bool, none: bool
) -> None:
    inputs, route = inputs_of(layer(SIZE), bias, prior), router(impl, num_iters, bias, prior, none)
    agreement_BIJ = agreement(inputs, num_iters, bias, prior, none)
    pose_BJD = last_iteration(inputs, agreement_BIJ, bias, prior, none)
    routed = route(inputs, "last")
    torch.testing.assert_close(routed.pose_BJD, pose_BJD)
    found, expected = (gradients(loss(x), inputs) for x in (routed.pose_BJD, pose_BJD))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@every_impl
@pytest.mark.parametrize("num_iters", [2, 3])
@with_and_without_none
def test_finite_differences_of_the_last_iteration_are_its_gradient(
    impl: str, num_iters: int, none: bool
) -> None:
    inputs = inputs_of(layer(SIZE), bias=True, prior=True)
    frozen_BIJ = agreement(inputs, num_iters, True, True, none)
    route = router(impl, num_iters, True, True, none)
    found = gradients(loss(route(inputs, "last").pose_BJD), inputs)
    step = 1e-6
    for tensor, gradient in zip(inputs, found, strict=True):
        for place in range(tensor.numel()):
            values = []
            for moved in (step, -step):
                with torch.no_grad():
                    kept = tensor.view(-1)[place].item()
                    tensor.view(-1)[place] = kept + moved
                    values.append(loss(last_iteration(inputs, frozen_BIJ, True, True, none)).item())
                    tensor.view(-1)[place] = kept
            slope = (values[0] - values[1]) / (2 * step)
            assert gradient.flatten()[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@every_impl
@with_and_without_none
def test_with_one_iteration_the_last_is_all_there_is(impl: str, none: bool) -> None:
    inputs, route = inputs_of(layer(SIZE), True, True), router(impl, 1, True, True, none)
    full, last = (gradients(loss(route(inputs, g).pose_BJD), inputs) for g in ("full", "last"))
    for one, other in zip(full, last, strict=True):
        torch.testing.assert_close(one, other)


@every_impl
@pytest.mark.parametrize("num_iters", [2, 3])
def test_with_several_iterations_the_two_gradients_differ(impl: str, num_iters: int) -> None:
    inputs, route = inputs_of(layer(SIZE), True, True), router(impl, num_iters, True, True, False)
    full, last = (gradients(loss(route(inputs, g).pose_BJD), inputs) for g in ("full", "last"))
    for one, other in zip(full, last, strict=True):
        assert not torch.allclose(one, other)


@every_impl
def test_the_votes_can_be_given_without_a_past(impl: str) -> None:
    chosen = layer(SIZE)
    routed = IMPLS[impl](chosen.votes, 3, chosen.bias_JD, gradient="last")
    assert not routed.pose_BJD.requires_grad
