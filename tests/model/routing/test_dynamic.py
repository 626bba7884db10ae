"""Dynamic routing against procedure 1, written out: every option in every implementation.

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

from capsweep.model.routing import dynamic, dynamic_fast
from capsweep.model.routing.dynamic import IMPLS, DynamicRouting
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
SMALL: Size = (2, 4, 3, 2, 3)

every_impl = pytest.mark.parametrize("impl", anywhere(IMPLS))
every_combination = pytest.mark.parametrize("options", COMBINATIONS, ids=map(str, COMBINATIONS))
every_gradient = pytest.mark.parametrize("gradient", ["full", "last"])
iterations = pytest.mark.parametrize("num_iters", [1, 2, 3])


@every_impl
@every_combination
@every_gradient
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
@pytest.mark.parametrize("size", AWKWARD)
def test_every_iteration_is_that_of_procedure_1(
    impl: str, options: Options, gradient: str, num_iters: int, size: Size
) -> None:
    chosen = layer(size)
    routed = options.route(impl, options.inputs(chosen), num_iters, gradient)
    assert routed.coupling_BIJ is not None
    assert routed.trace is not None
    bias_JD = chosen.bias_JD.numpy() if options.bias else np.zeros(chosen.bias_JD.shape)
    prior_IJ = chosen.prior_IJ.numpy() if options.prior else None
    weight_IJDP = chosen.weight_IJDP.numpy()
    for item, pose_IP in enumerate(chosen.pose_BIP.numpy()):
        expected = procedure_1(
            pose_IP, weight_IJDP, bias_JD, num_iters, prior_IJ, options.none_of_the_above
        )
        for step, iteration in zip(routed.trace, expected, strict=True):
            assert_equal(step["coupling"][item, 0], iteration.coupling_IJ)
            assert_equal(step["pose"][item, 0], iteration.pose_JD)
            assert_equal(step["agreement"][item, 0], iteration.agreement_IJ)
            assert_equal(1 - step["coupling"][item, 0].sum(dim=1), iteration.none_I)
        assert_equal(routed.pose_BJD[item], expected[-1].pose_JD)
        assert_equal(routed.coupling_BIJ[item], expected[-1].coupling_IJ)
        assert_equal(routed.act_BJ[item], np.linalg.norm(expected[-1].pose_JD, axis=-1))


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

    inputs = [x.requires_grad_() for x in options.inputs(layer((2, 3, 2, 2, 3)))]
    assert torch.autograd.gradcheck(outputs, inputs)


def iterate_last(options: Options, inputs: list[Tensor], agreement_BIJ: Tensor) -> Tensor:
    """Parent poses [B, J, D] of one iteration whose logits are prior plus agreement."""
    votes, bias_JD, prior_IJ = options.layer(inputs)
    votes_BIJD = torch.einsum("bip,ijdp->bijd", votes.pose_BIP, votes.weight_IJDP)
    odds_BIJ = (agreement_BIJ if prior_IJ is None else agreement_BIJ + prior_IJ).exp()
    coupling_BIJ = odds_BIJ / (odds_BIJ.sum(dim=2, keepdim=True) + options.none_of_the_above)
    s_BJD = torch.einsum("bij,bijd->bjd", coupling_BIJ, votes_BIJD)
    s_BJD = s_BJD if bias_JD is None else s_BJD + bias_JD
    squared_BJ1 = s_BJD.square().sum(dim=2, keepdim=True)
    return squared_BJ1 / (1 + squared_BJ1) * s_BJD / squared_BJ1.sqrt()


@every_impl
@iterations
@every_combination
def test_the_last_gradient_is_that_of_one_iteration_with_agreements_that_have_no_past(
    impl: str, num_iters: int, options: Options
) -> None:
    inputs = [x.clone().requires_grad_() for x in options.inputs(layer(SMALL))]
    agreement_BIJ = torch.zeros(2, 4, 3, dtype=torch.float64)
    with torch.no_grad():
        votes_BIJD = torch.einsum("bip,ijdp->bijd", *inputs[:2])
        for _ in range(num_iters - 1):
            v_BJD = iterate_last(options, inputs, agreement_BIJ)
            agreement_BIJ = agreement_BIJ + torch.einsum("bijd,bjd->bij", votes_BIJD, v_BJD)
    poses = [
        options.route(impl, inputs, num_iters, "last").pose_BJD,
        iterate_last(options, inputs, agreement_BIJ),
    ]
    torch.testing.assert_close(*poses)
    # A number that every component of every parent moves, each by its own amount.
    weight_BJD = torch.linspace(-1, 2, poses[0].numel()).view_as(poses[0])
    gradients = [torch.autograd.grad((pose * weight_BJD).sum(), inputs) for pose in poses]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@every_impl
@pytest.mark.parametrize("gradient", ["half", "", "none"])
def test_an_unknown_gradient_is_refused_by_name(impl: str, gradient: str) -> None:
    with pytest.raises(ValueError, match=r"routing\.gradient must be one of full, last, got "):
        COMBINATIONS[0].route(impl, COMBINATIONS[0].inputs(layer(SMALL)), 2, gradient)


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


@every_impl
def test_nothing_is_traced_unless_asked_for(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = layer((2, 5, 3, 4, 2))
    votes, bias_JD = chosen.votes, chosen.bias_JD
    monkeypatch.setattr(dynamic, "_make_trace_step", None)
    monkeypatch.setattr(dynamic_fast, "make_trace_step", None)
    assert IMPLS[impl](votes, 3, bias_JD).trace is None
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        IMPLS[impl](votes, 3, bias_JD, with_trace=True)


def _module(**changed: object) -> DynamicRouting:
    arguments = {"num_iters": 2, "bias": True, "impl": "reference", **changed}
    return DynamicRouting(**arguments, num_children=5, num_parents=3, parent_pose=2)


@pytest.mark.parametrize("gradient", ["full", "last"])
def test_the_layer_routes_with_its_own_parameters_and_options(gradient: str) -> None:
    chosen = layer((2, 5, 3, 4, 2))
    weight_IJDP = chosen.weight_IJDP.requires_grad_()
    module = _module(learned_prior=True, none_of_the_above=True, gradient=gradient).double()
    assert not module.prior_IJ.any()  # at first
    with torch.no_grad():
        module.prior_IJ.copy_(chosen.prior_IJ)
        module.bias_JD.copy_(chosen.bias_JD)
    options = {"prior_LJ": chosen.prior_IJ, "none_of_the_above": True, "gradient": gradient}
    by_hand = IMPLS["reference"](chosen.votes, 2, chosen.bias_JD, **options).pose_BJD
    by_layer = module(chosen.votes).pose_BJD
    assert torch.equal(by_layer, by_hand)
    one, other = (torch.autograd.grad(x.sum(), weight_IJDP)[0] for x in (by_layer, by_hand))
    assert torch.equal(one, other)


@pytest.mark.parametrize(("none_of_the_above", "shares"), [(False, 3), (True, 4)])
def test_a_child_divides_itself_at_first_among_so_many(
    none_of_the_above: bool, shares: int
) -> None:
    module = _module(none_of_the_above=none_of_the_above)
    assert module.count_equal_shares(3) == shares
    first_BMIJ = module(layer((2, 5, 3, 4, 2)).votes, with_trace=True).trace[0]["coupling"]
    torch.testing.assert_close(first_BMIJ, torch.full_like(first_BMIJ, 1 / shares))
