"""Dynamic routing against procedure 1, written out.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from capsweep.model.routing.dynamic import IMPLS, DynamicRouting
from capsweep.model.votes import Votes

AWKWARD = [(1, 1, 1, 1, 1), (2, 5, 3, 4, 2), (3, 1, 7, 2, 5), (2, 11, 1, 3, 1)]

every_impl = pytest.mark.parametrize("impl", IMPLS)
with_and_without_bias = pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "plain"])


class Iteration(NamedTuple):
    """What one iteration found, for one item."""

    coupling_IJ: np.ndarray
    pose_JD: np.ndarray


def procedure_1(
    pose_IP: np.ndarray, weight_IJDP: np.ndarray, bias_JD: np.ndarray, num_iters: int
) -> list[Iteration]:
    """Procedure 1 of the paper for one item, one scalar at a time."""
    num_children, num_parents, parent_pose, _ = weight_IJDP.shape
    u_hat = np.zeros((num_children, num_parents, parent_pose))
    for i, j, d, p in np.ndindex(weight_IJDP.shape):
        u_hat[i, j, d] += weight_IJDP[i, j, d, p] * pose_IP[i, p]
    b = np.zeros((num_children, num_parents))
    iterations = []
    for _ in range(num_iters):
        c = np.zeros_like(b)
        for i in range(num_children):
            total = sum(math.exp(b[i, j]) for j in range(num_parents))
            for j in range(num_parents):
                c[i, j] = math.exp(b[i, j]) / total
        v = np.zeros((num_parents, parent_pose))
        for j in range(num_parents):
            s = bias_JD[j].copy()
            for i in range(num_children):
                s += c[i, j] * u_hat[i, j]
            norm_squared = sum(x * x for x in s)
            v[j] = norm_squared / (1 + norm_squared) * s / math.sqrt(norm_squared)
        for i, j, d in np.ndindex(u_hat.shape):
            b[i, j] += u_hat[i, j, d] * v[j, d]
        iterations.append(Iteration(c, v))
    return iterations


def _layer(size: tuple[int, int, int, int, int]) -> tuple[Votes, Tensor]:
    """Random votes and bias in float64."""
    generator = torch.Generator().manual_seed(sum(size))
    batch, children, parents, child_pose, parent_pose = size

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    votes = Votes(
        normal(batch, children, child_pose), normal(children, parents, parent_pose, child_pose)
    )
    return votes, normal(parents, parent_pose)


def _assert_equal(found: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


@every_impl
@with_and_without_bias
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
@pytest.mark.parametrize("size", AWKWARD)
def test_every_iteration_is_that_of_procedure_1(
    impl: str, with_bias: bool, num_iters: int, size: tuple[int, int, int, int, int]
) -> None:
    votes, bias_JD = _layer(size)
    routed = IMPLS[impl](votes, num_iters, bias_JD if with_bias else None, with_trace=True)
    assert routed.coupling_BIJ is not None
    assert routed.trace is not None
    assert len(routed.trace) == num_iters
    oracle_bias_JD = bias_JD.numpy() if with_bias else np.zeros(bias_JD.shape)
    for item, pose_IP in enumerate(votes.pose_BIP.numpy()):
        expected = procedure_1(pose_IP, votes.weight_IJDP.numpy(), oracle_bias_JD, num_iters)
        for found, iteration in zip(routed.trace, expected, strict=True):
            _assert_equal(found["coupling"][item], iteration.coupling_IJ)
            _assert_equal(found["pose"][item], iteration.pose_JD)
        _assert_equal(routed.pose_BJD[item], expected[-1].pose_JD)
        _assert_equal(routed.coupling_BIJ[item], expected[-1].coupling_IJ)
        _assert_equal(routed.act_BJ[item], np.linalg.norm(expected[-1].pose_JD, axis=-1))


@every_impl
def test_the_trace_ends_with_what_is_returned(impl: str) -> None:
    votes, bias_JD = _layer((2, 5, 3, 4, 2))
    routed = IMPLS[impl](votes, 3, bias_JD, with_trace=True)
    assert routed.trace is not None
    assert torch.equal(routed.trace[-1]["pose"], routed.pose_BJD)
    assert torch.equal(routed.trace[-1]["coupling"], routed.coupling_BIJ)


@every_impl
def test_a_shorter_run_is_the_beginning_of_a_longer_one(impl: str) -> None:
    votes, bias_JD = _layer((2, 5, 3, 4, 2))
    long = IMPLS[impl](votes, 3, bias_JD, with_trace=True).trace
    short = IMPLS[impl](votes, 2, bias_JD, with_trace=True).trace
    for one, other in zip(short, long[:2], strict=True):
        assert torch.equal(one["pose"], other["pose"])
        assert torch.equal(one["coupling"], other["coupling"])


@every_impl
def test_there_is_no_trace_unless_asked_for(impl: str) -> None:
    votes, bias_JD = _layer((2, 5, 3, 4, 2))
    assert IMPLS[impl](votes, 3, bias_JD).trace is None


@every_impl
def test_a_child_moves_to_the_parent_it_agrees_with(impl: str) -> None:
    # Parent 0 is voted for with one voice; the votes for parent 1 cancel out.
    pose_BIP = torch.ones(1, 2, 1, dtype=torch.float64)
    weight_IJDP = torch.tensor([[[[1.0]], [[1.0]]], [[[1.0]], [[-1.0]]]], dtype=torch.float64)
    trace = IMPLS[impl](Votes(pose_BIP, weight_IJDP), 3, with_trace=True).trace
    assert trace is not None
    towards_agreement = [step["coupling"][0, :, 0] for step in trace]
    assert (towards_agreement[0] == 0.5).all()
    assert (towards_agreement[1] > towards_agreement[0]).all()
    assert (towards_agreement[2] > towards_agreement[1]).all()


def _module(**changed: object) -> DynamicRouting:
    arguments = {"num_iters": 2, "bias": True, "impl": "reference", **changed}
    return DynamicRouting(**arguments, num_children=5, num_parents=3, parent_pose=2)


def test_the_layer_routes_with_its_own_iterations_and_bias() -> None:
    votes, _ = _layer((2, 5, 3, 4, 2))
    bias_JD = torch.full((3, 2), 0.1, dtype=torch.float64)
    expected = IMPLS["reference"](votes, 2, bias_JD, with_trace=True)
    routed = _module().double()(votes, with_trace=True)
    torch.testing.assert_close(routed.pose_BJD, expected.pose_BJD, rtol=0, atol=1e-7)
    assert len(routed.trace) == 2


def test_the_bias_is_a_parameter_per_parent_pose_or_absent() -> None:
    assert {name: tuple(p.shape) for name, p in _module().named_parameters()} == {"bias_JD": (3, 2)}
    assert list(_module(bias=False).parameters()) == []


def test_an_unknown_implementation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"routing\.impl must be one of reference, got fastest"):
        _module(impl="fastest")
