"""Dynamic routing against procedure 1, written out.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import numpy as np
import pytest
import torch
from procedure_1 import AWKWARD, Size, assert_equal, layer, procedure_1
from routing_variants import anywhere

from capsweep.model.capsules import squash
from capsweep.model.routing import dynamic, dynamic_fast
from capsweep.model.routing.dynamic import IMPLS, DynamicRouting
from capsweep.model.votes import Votes

every_impl = pytest.mark.parametrize("impl", anywhere(IMPLS))
with_and_without_bias = pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "plain"])


@every_impl
@with_and_without_bias
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
@pytest.mark.parametrize("size", AWKWARD)
def test_every_iteration_is_that_of_procedure_1(
    impl: str, with_bias: bool, num_iters: int, size: Size
) -> None:
    chosen = layer(size)
    votes, bias_JD = chosen.votes, chosen.bias_JD
    routed = IMPLS[impl](votes, num_iters, bias_JD if with_bias else None, with_trace=True)
    assert routed.coupling_BIJ is not None
    assert routed.trace is not None
    assert len(routed.trace) == num_iters
    oracle_bias_JD = bias_JD.numpy() if with_bias else np.zeros(bias_JD.shape)
    for item, pose_IP in enumerate(votes.pose_BIP.numpy()):
        expected = procedure_1(pose_IP, votes.weight_IJDP.numpy(), oracle_bias_JD, num_iters)
        for found, iteration in zip(routed.trace, expected, strict=True):
            assert_equal(found["coupling"][item, 0], iteration.coupling_IJ)
            assert_equal(found["pose"][item, 0], iteration.pose_JD)
            assert_equal(found["agreement"][item, 0], iteration.agreement_IJ)
        assert_equal(routed.pose_BJD[item], expected[-1].pose_JD)
        assert_equal(routed.coupling_BIJ[item], expected[-1].coupling_IJ)
        assert_equal(routed.act_BJ[item], np.linalg.norm(expected[-1].pose_JD, axis=-1))


@every_impl
def test_the_trace_ends_with_what_is_returned(impl: str) -> None:
    chosen = layer((2, 5, 3, 4, 2))
    votes, bias_JD = chosen.votes, chosen.bias_JD
    routed = IMPLS[impl](votes, 3, bias_JD, with_trace=True)
    assert routed.trace is not None
    assert torch.equal(routed.trace[-1]["pose"][:, 0], routed.pose_BJD)
    assert torch.equal(routed.trace[-1]["coupling"][:, 0], routed.coupling_BIJ)


@every_impl
def test_a_shorter_run_is_the_beginning_of_a_longer_one(impl: str) -> None:
    chosen = layer((2, 5, 3, 4, 2))
    votes, bias_JD = chosen.votes, chosen.bias_JD
    long = IMPLS[impl](votes, 3, bias_JD, with_trace=True).trace
    short = IMPLS[impl](votes, 2, bias_JD, with_trace=True).trace
    for one, other in zip(short, long[:2], strict=True):
        assert torch.equal(one["pose"], other["pose"])
        assert torch.equal(one["coupling"], other["coupling"])


@every_impl
def test_nothing_is_traced_unless_asked_for(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = layer((2, 5, 3, 4, 2))
    votes, bias_JD = chosen.votes, chosen.bias_JD
    monkeypatch.setattr(dynamic, "_make_trace_step", None)
    monkeypatch.setattr(dynamic_fast, "make_trace_step", None)
    assert IMPLS[impl](votes, 3, bias_JD).trace is None
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        IMPLS[impl](votes, 3, bias_JD, with_trace=True)


@every_impl
def test_a_child_moves_to_the_parent_it_agrees_with(impl: str) -> None:
    # Parent 0 is voted for with one voice; the votes for parent 1 cancel out.
    pose_BIP = torch.ones(1, 2, 1, dtype=torch.float64)
    weight_IJDP = torch.tensor([[[[1.0]], [[1.0]]], [[[1.0]], [[-1.0]]]], dtype=torch.float64)
    trace = IMPLS[impl](Votes(pose_BIP, weight_IJDP), 3, with_trace=True).trace
    assert trace is not None
    towards_agreement = [step["coupling"][0, 0, :, 0] for step in trace]
    assert (towards_agreement[0] == 0.5).all()
    assert (towards_agreement[1] > towards_agreement[0]).all()
    assert (towards_agreement[2] > towards_agreement[1]).all()


@every_impl
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", AWKWARD)
def test_one_iteration_squashes_the_equally_divided_votes(impl: str, size: Size, seed: int) -> None:
    chosen = layer(size, seed)
    sum_BJD = chosen.votes.dense().sum(dim=1) / size[2]
    found_BJD = IMPLS[impl](chosen.votes, 1, chosen.bias_JD).pose_BJD
    torch.testing.assert_close(found_BJD, squash(sum_BJD + chosen.bias_JD))


@every_impl
@pytest.mark.parametrize("num_iters", [1, 2, 3])
@pytest.mark.parametrize("size", [*AWKWARD, (5, 13, 11, 7, 17)])
def test_parents_have_a_length_below_one(impl: str, num_iters: int, size: Size) -> None:
    chosen = layer(size)
    routed = IMPLS[impl](chosen.votes, num_iters, chosen.bias_JD)
    assert ((routed.act_BJ > 0) & (routed.act_BJ < 1)).all()


def _module(**changed: object) -> DynamicRouting:
    arguments = {"num_iters": 2, "bias": True, "impl": "reference", **changed}
    return DynamicRouting(**arguments, num_children=5, num_parents=3, parent_pose=2)


def test_the_layer_routes_with_its_own_iterations_and_bias() -> None:
    votes = layer((2, 5, 3, 4, 2)).votes
    bias_JD = torch.full((3, 2), 0.1, dtype=torch.float64)
    expected = IMPLS["reference"](votes, 2, bias_JD, with_trace=True)
    routed = _module().double()(votes, with_trace=True)
    torch.testing.assert_close(routed.pose_BJD, expected.pose_BJD, rtol=0, atol=1e-7)
    assert len(routed.trace) == 2


def test_the_bias_is_a_parameter_per_parent_pose_or_absent() -> None:
    assert {name: tuple(p.shape) for name, p in _module().named_parameters()} == {"bias_JD": (3, 2)}
    assert list(_module(bias=False).parameters()) == []


def test_learned_priors_are_a_parameter_per_child_and_parent_at_first_zero() -> None:
    module = _module(learned_prior=True)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "bias_JD": (3, 2),
        "prior_IJ": (5, 3),
    }
    assert not module.prior_IJ.any()


def test_the_layer_routes_with_its_own_options() -> None:
    chosen = layer((2, 5, 3, 4, 2))
    module = _module(learned_prior=True, none_of_the_above=True, gradient="last").double()
    with torch.no_grad():
        module.prior_IJ.copy_(chosen.prior_IJ)
        module.bias_JD.copy_(chosen.bias_JD)
    expected = IMPLS["reference"](
        chosen.votes, 2, chosen.bias_JD, prior_LJ=chosen.prior_IJ, none_of_the_above=True
    )
    assert torch.equal(module(chosen.votes).pose_BJD, expected.pose_BJD)


@pytest.mark.parametrize("gradient", ["full", "last"])
def test_the_layer_hands_its_choice_of_gradient_on(gradient: str) -> None:
    chosen = layer((2, 5, 3, 4, 2))
    weight_IJDP = chosen.weight_IJDP.requires_grad_()
    module = _module(bias=False, gradient=gradient)
    by_layer = module(chosen.votes).pose_BJD.sum()
    by_hand = IMPLS["reference"](chosen.votes, 2, gradient=gradient).pose_BJD.sum()
    one, other = (torch.autograd.grad(x, weight_IJDP)[0] for x in (by_layer, by_hand))
    assert torch.equal(one, other)


@pytest.mark.parametrize(("none_of_the_above", "shares"), [(False, 3), (True, 4)])
def test_a_child_divides_itself_at_first_among_so_many(
    none_of_the_above: bool, shares: int
) -> None:
    module = _module(none_of_the_above=none_of_the_above)
    assert module.count_equal_shares(3) == shares
    first_BMIJ = module(layer((2, 5, 3, 4, 2)).votes, with_trace=True).trace[0]["coupling"]
    torch.testing.assert_close(first_BMIJ, torch.full_like(first_BMIJ, 1 / shares))


def test_an_unknown_implementation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"routing\.impl must be one of reference.*, got fastest"):
        _module(impl="fastest")
