"""The options of dynamic routing, in every implementation: none-of-the-above, priors, gradients.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from procedure_1 import AWKWARD, Layer, Size, assert_equal, layer, procedure_1
from routing_variants import anywhere
from torch import Tensor

from capsweep.model.routing.dynamic import IMPLS
from capsweep.model.votes import Routed, Votes


class Options(NamedTuple):
    """What of a layer is used, beside its votes."""

    bias: bool
    prior: bool
    none_of_the_above: bool

    def __str__(self) -> str:
        """Those that are on."""
        on = [name for name, used in zip(self._fields, self, strict=True) if used]
        return "+".join(on) or "none"

    def inputs(self, chosen: Layer) -> list[Tensor]:
        """What gradients flow to: poses, weights and, where used, bias and priors."""
        used = [self.bias, self.prior]
        return [*chosen[:2], *itertools.compress(chosen[2:], used)]

    def layer(self, inputs: list[Tensor]) -> tuple[Votes, Tensor | None, Tensor | None]:
        """Votes, bias and priors from `inputs`."""
        pose_BIP, weight_IJDP, *rest = inputs
        bias_JD = rest.pop(0) if self.bias else None
        return Votes(pose_BIP, weight_IJDP), bias_JD, rest.pop(0) if self.prior else None

    def route(
        self, impl: str, inputs: list[Tensor], num_iters: int, gradient: str = "full"
    ) -> Routed:
        """Route with these options, and keep the trace."""
        votes, bias_JD, prior_IJ = self.layer(inputs)
        return IMPLS[impl](
            votes,
            num_iters,
            bias_JD,
            with_trace=True,
            prior_LJ=prior_IJ,
            none_of_the_above=self.none_of_the_above,
            gradient=gradient,
        )


COMBINATIONS = [Options(*chosen) for chosen in itertools.product([False, True], repeat=3)]
SMALL: Size = (2, 3, 2, 2, 3)

every_impl = pytest.mark.parametrize("impl", anywhere(IMPLS))
every_combination = pytest.mark.parametrize("options", COMBINATIONS, ids=map(str, COMBINATIONS))
every_gradient = pytest.mark.parametrize("gradient", ["full", "last"])
iterations = pytest.mark.parametrize("num_iters", [1, 2, 3])
several_iterations = pytest.mark.parametrize("num_iters", [2, 3])


def couplings(routed: Routed) -> list[Tensor]:
    """Couplings [B, I, J] of each iteration, at the one position."""
    assert routed.trace is not None
    return [step["coupling"][:, 0] for step in routed.trace]


@every_impl
@every_combination
@every_gradient
@pytest.mark.parametrize("size", AWKWARD)
def test_every_iteration_is_that_of_procedure_1(
    impl: str, options: Options, gradient: str, size: Size
) -> None:
    chosen = layer(size)
    routed = options.route(impl, options.inputs(chosen), 3, gradient)
    assert routed.trace is not None
    bias_JD = chosen.bias_JD.numpy() if options.bias else np.zeros(chosen.bias_JD.shape)
    prior_IJ = chosen.prior_IJ.numpy() if options.prior else None
    weight_IJDP = chosen.weight_IJDP.numpy()
    for item, pose_IP in enumerate(chosen.pose_BIP.numpy()):
        expected = procedure_1(
            pose_IP, weight_IJDP, bias_JD, 3, prior_IJ, options.none_of_the_above
        )
        for found, iteration in zip(routed.trace, expected, strict=True):
            assert_equal(found["coupling"][item, 0], iteration.coupling_IJ)
            assert_equal(found["pose"][item, 0], iteration.pose_JD)
            assert_equal(found["agreement"][item, 0], iteration.agreement_IJ)
            assert_equal(1 - found["coupling"][item, 0].sum(dim=1), iteration.none_I)
        assert_equal(routed.pose_BJD[item], expected[-1].pose_JD)


@every_impl
@every_combination
@iterations
def test_gradients_of_every_combination_are_those_of_the_function(
    impl: str, options: Options, num_iters: int
) -> None:
    def outputs(*inputs: Tensor) -> tuple[Tensor, ...]:
        routed = options.route(impl, list(inputs), num_iters)
        # The first coupling is a constant unless its prior is learned.
        return tuple(x for x in routed[:3] if x is not None and x.requires_grad)

    inputs = [x.requires_grad_() for x in options.inputs(layer(SMALL))]
    assert torch.autograd.gradcheck(outputs, inputs)


NONE = Options(bias=True, prior=False, none_of_the_above=True)


@every_impl
@pytest.mark.parametrize("size", AWKWARD)
def test_with_none_of_the_above_a_child_keeps_something_for_itself(impl: str, size: Size) -> None:
    routed = NONE.route(impl, NONE.inputs(layer(size)), 3)
    for coupling_BIJ in couplings(routed):
        assert (coupling_BIJ > 0).all()
        assert (coupling_BIJ.sum(dim=2) < 1).all()


@every_impl
@pytest.mark.parametrize("size", AWKWARD)
def test_at_first_none_of_the_above_is_as_likely_as_each_parent(impl: str, size: Size) -> None:
    first_BIJ = couplings(NONE.route(impl, NONE.inputs(layer(size)), 1))[0]
    num_parents = size[2]
    assert_equal(first_BIJ, np.full(first_BIJ.shape, 1 / (num_parents + 1)))


@every_impl
def test_the_logit_of_none_of_the_above_never_moves(impl: str) -> None:
    chosen = layer((2, 5, 3, 4, 2))
    routed = NONE.route(impl, NONE.inputs(chosen), 4)
    assert routed.trace is not None
    # log (c_ij / c_i,none) is b_ij minus the logit of none: it moves by the agreement alone.
    log_odds = [torch.log(c / (1 - c.sum(dim=2, keepdim=True))) for c in couplings(routed)]
    votes_BIJD = chosen.votes.dense()
    for step, (before_BIJ, after_BIJ) in zip(
        routed.trace, itertools.pairwise(log_odds), strict=False
    ):
        agreement_BIJ = torch.einsum("bijd,bjd->bij", votes_BIJD, step["pose"][:, 0])
        torch.testing.assert_close(after_BIJ - before_BIJ, agreement_BIJ)


@every_impl
def test_a_child_that_agrees_with_no_parent_turns_to_none_of_the_above(impl: str) -> None:
    # Three children vote for +1 with one voice, at both parents; the last one votes for -1.
    pose_BIP = torch.ones(1, 4, 1, dtype=torch.float64)
    voices_I111 = torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.float64).reshape(4, 1, 1, 1)
    weight_IJDP = voices_I111.expand(4, 2, 1, 1)
    options = Options(bias=False, prior=False, none_of_the_above=True)
    routed = options.route(impl, [pose_BIP, weight_IJDP], 3)
    left = [1 - c[0].sum(dim=1) for c in couplings(routed)]
    for before_I, after_I in itertools.pairwise(left):
        assert (after_I[:3] < before_I[:3]).all()
        assert after_I[3] > before_I[3]


PRIOR = Options(bias=True, prior=True, none_of_the_above=False)


@every_impl
@pytest.mark.parametrize("none_of_the_above", [False, True])
def test_the_prior_is_the_first_logit(impl: str, none_of_the_above: bool) -> None:
    chosen, options = layer((2, 5, 3, 4, 2)), PRIOR._replace(none_of_the_above=none_of_the_above)
    first_BIJ = couplings(options.route(impl, options.inputs(chosen), 1))[0]
    odds_IJ = chosen.prior_IJ.exp()
    expected_IJ = odds_IJ / (odds_IJ.sum(dim=1, keepdim=True) + none_of_the_above)
    assert_equal(first_BIJ, expected_IJ.expand(2, 5, 3).numpy())


@every_impl
@iterations
@pytest.mark.parametrize("none_of_the_above", [False, True])
def test_a_prior_that_favours_no_parent_matters_to_none_of_the_above_alone(
    impl: str, num_iters: int, none_of_the_above: bool
) -> None:
    chosen, options = layer((2, 5, 3, 4, 2)), PRIOR._replace(none_of_the_above=none_of_the_above)
    without = options._replace(prior=False)
    plain = without.route(impl, without.inputs(chosen), num_iters)
    level = chosen._replace(prior_IJ=torch.full((5, 3), 2.0, dtype=torch.float64))
    raised = options.route(impl, options.inputs(level), num_iters)
    assert torch.allclose(raised.pose_BJD, plain.pose_BJD) is not none_of_the_above


@every_impl
@every_gradient
@iterations
def test_the_gradient_reaches_the_prior(impl: str, gradient: str, num_iters: int) -> None:
    inputs = [x.requires_grad_() for x in PRIOR.inputs(layer(SMALL))]
    PRIOR.route(impl, inputs, num_iters, gradient).pose_BJD.square().sum().backward()
    assert inputs[-1].grad is not None
    assert inputs[-1].grad.abs().min() > 0


@every_impl
@pytest.mark.parametrize("gradient", ["half", "", "none"])
def test_an_unknown_gradient_is_refused_by_name(impl: str, gradient: str) -> None:
    with pytest.raises(ValueError, match=r"routing\.gradient must be one of full, last, got "):
        PRIOR.route(impl, PRIOR.inputs(layer(SMALL)), 2, gradient)


@every_impl
@every_combination
@every_gradient
@pytest.mark.parametrize("scale", [0.0, 1e8], ids=["zero-votes", "huge-votes"])
def test_extreme_votes_give_finite_values_and_gradients(
    impl: str, options: Options, gradient: str, scale: float
) -> None:
    chosen = layer((2, 7, 3, 4, 5))
    inputs = options.inputs(chosen._replace(pose_BIP=scale * chosen.pose_BIP))
    leaves = [x.float().requires_grad_() for x in inputs]
    routed = options.route(impl, leaves, 3, gradient)
    (routed.pose_BJD.sum() + routed.act_BJ.sum()).backward()
    for tensor in (routed.pose_BJD, routed.act_BJ, *(leaf.grad for leaf in leaves)):
        assert tensor is not None
        assert tensor.isfinite().all()
