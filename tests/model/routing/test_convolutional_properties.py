"""What every routing variant promises about convolutional votes, whose children stand below several
parent positions.

Shape letters: B batch, M parent positions, N child positions, K kernel offsets, I child types, J
parent types, L = K I children below a parent position, R S rows and columns of a pose.
"""

from typing import NamedTuple

import pytest
import torch
from routing_variants import (
    Variant,
    assert_same,
    every_dividing_impl,
    every_impl,
    iterations,
    normal,
)
from torch import Tensor

from capsweep.model import convolution
from capsweep.model.routing import Routed
from capsweep.model.votes import ConvolutionalVotes, Votes

strides = pytest.mark.parametrize("stride", [1, 2])


class Convolved(NamedTuple):
    """The input of one convolutional layer: a 5x6 grid of children of two types below 3x3 kernels
    of parents of three. With stride 2 the last column has no parent.
    """

    pose_BNIRS: Tensor
    activation_BNI: Tensor
    weight_KIJSS: Tensor
    child_MK: Tensor

    @property
    def votes(self) -> ConvolutionalVotes:
        """Of all children."""
        return ConvolutionalVotes(*self)

    def route(self, variant: Variant, num_iters: int) -> Routed:
        """Route, and keep the trace."""
        return variant.layer(num_iters, 9 * 2, 3, 16)(self.votes, with_trace=True)


def _convolved(stride: int, seed: int = 0) -> Convolved:
    """Standard normal poses and weights, activations between 0 and 1."""
    children, draw = convolution.PositionGrid(5, 6, first=0, step=1), normal(seed)
    return Convolved(
        draw(2, children.num_positions, 2, 4, 4),
        draw(2, children.num_positions, 2).sigmoid(),
        0.5 * draw(9, 2, 3, 4, 4),
        torch.tensor(convolution.list_fields(children, kernel=3, stride=stride)),
    )


def _per_child(coupling_BMLJ: Tensor, child_MK: Tensor, positions: int) -> Tensor:
    """What each child gives to all its parents together [B, N, I]."""
    batch, offsets = len(coupling_BMLJ), child_MK.shape[1]
    given_BMKI = coupling_BMLJ.sum(dim=3).unflatten(2, (offsets, -1))
    sums_BNI = coupling_BMLJ.new_zeros(batch, positions, given_BMKI.shape[3])
    return sums_BNI.index_add(1, child_MK.flatten(), given_BMKI.flatten(1, 2))


@every_dividing_impl
@iterations
@strides
def test_a_child_divides_itself_among_the_parents_at_all_positions_above_it(
    variant: Variant, num_iters: int, stride: int
) -> None:
    layer = _convolved(stride)
    positions = layer.pose_BNIRS.shape[1]
    has_parent_N = torch.isin(torch.arange(positions), layer.child_MK)
    trace = layer.route(variant, num_iters).trace
    assert trace is not None
    assert len(trace) == num_iters
    for coupling_BMLJ in (step["coupling"] for step in trace):
        assert (coupling_BMLJ >= 0).all()
        sums_BNI = _per_child(coupling_BMLJ, layer.child_MK, positions)
        expected_BNI = has_parent_N.double()[None, :, None].expand_as(sums_BNI)
        torch.testing.assert_close(sums_BNI, expected_BNI, rtol=0, atol=1e-12)


@every_impl
def test_a_child_without_a_parent_changes_nothing_and_gets_no_gradient(variant: Variant) -> None:
    layer = _convolved(stride=2)
    without_N = ~torch.isin(torch.arange(30), layer.child_MK)
    assert without_N.nonzero().flatten().tolist() == [5, 11, 17, 23, 29]
    pose_BNIRS = layer.pose_BNIRS.clone().requires_grad_()
    routed = layer._replace(pose_BNIRS=pose_BNIRS).route(variant, 3)
    (routed.pose_BJD.sum() + routed.act_BJ.sum()).backward()
    assert pose_BNIRS.grad is not None
    assert not pose_BNIRS.grad[:, without_N].any()
    assert pose_BNIRS.grad[:, ~without_N].abs().amax(dim=(2, 3, 4)).min() > 0
    other_BNIRS = torch.where(without_N[None, :, None, None, None], 99.0, layer.pose_BNIRS)
    after = layer._replace(pose_BNIRS=other_BNIRS).route(variant, 3)
    assert torch.equal(after.pose_BJD, routed.pose_BJD)
    assert torch.equal(after.act_BJ, routed.act_BJ)


@every_impl
@iterations
def test_a_kernel_as_large_as_the_grid_is_a_layer_of_one_position(
    variant: Variant, num_iters: int
) -> None:
    draw = normal(0)
    pose_BNIRS, weight_KIJSS = draw(2, 4, 3, 4, 4), draw(4, 3, 5, 4, 4)
    activation_BNI = draw(2, 4, 3).sigmoid()
    convolved = ConvolutionalVotes(pose_BNIRS, activation_BNI, weight_KIJSS, torch.arange(4)[None])
    # The same votes as a linear layer gives: V = M W, written as a matrix on the flat pose.
    weight_IJDP = torch.stack(
        [
            torch.kron(torch.eye(4, dtype=torch.float64), matrix.T.contiguous())
            for matrix in weight_KIJSS.flatten(0, 2)
        ]
    ).unflatten(0, (12, 5))
    dense = Votes(pose_BNIRS.flatten(3).flatten(1, 2), weight_IJDP, activation_BNI.flatten(1))
    module = variant.layer(num_iters, children=12, parents=5, parent_pose=16)
    first, second = module(convolved), module(dense)
    assert_same(first.pose_BJD, second.pose_BJD)
    assert_same(first.act_BJ, second.act_BJ)
    if first.coupling_BIJ is not None:
        assert_same(first.coupling_BIJ, second.coupling_BIJ)
