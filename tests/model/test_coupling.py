"""Competition for a child against sums over all pairs of its parents.

Shape letters as in capsweep.model.routing.
"""

import math

import pytest
import torch

from capsweep.model import convolution
from capsweep.model.routing import ReceptiveFields, coupling_softmax

NORMS = ("all", "types", "positions")
TYPES = 2  # of children, at each position


def _fields(stride: int) -> ReceptiveFields:
    """Of 3x3 kernels on a 5x6 grid; with stride 2 the last column has no parent."""
    grid = convolution.PositionGrid(5, 6, first=0, step=1)
    return ReceptiveFields(
        torch.tensor(convolution.list_fields(grid, 3, stride)), grid.num_positions
    )


def _logits(fields: ReceptiveFields, scale: float) -> torch.Tensor:
    positions, offsets = fields.child_MK.shape
    generator = torch.Generator().manual_seed(positions)
    shape = (2, positions, TYPES * offsets, 3)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def _is_rival(
    one: tuple[int, ...], other: tuple[int, ...], fields: ReceptiveFields, norm: str
) -> bool:
    """Whether two [M, L, J] are parents of one child that compete for it."""
    (m, position, j), (other_m, other_position, other_j) = one, other
    (k, i), (other_k, other_i) = divmod(position, TYPES), divmod(other_position, TYPES)
    if i != other_i or fields.child_MK[m, k] != fields.child_MK[other_m, other_k]:
        return False
    return {"all": True, "types": m == other_m, "positions": j == other_j}[norm]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("nowhere", [False, True])
def test_a_share_is_an_exponential_over_the_sum_of_those_of_its_rivals(
    stride: int, norm: str, nowhere: bool
) -> None:
    fields = _fields(stride)
    logit_BMLJ = _logits(fields, scale=1)
    share_BMLJ = coupling_softmax(logit_BMLJ, fields, norm, nowhere)
    places = list(torch.cartesian_prod(*map(torch.arange, logit_BMLJ.shape[1:])).tolist())
    for one in places[:: len(places) // 40]:
        rivals = [other for other in places if _is_rival(tuple(one), tuple(other), fields, norm)]
        total = sum(math.exp(logit_BMLJ[0, m, p, j].item()) for m, p, j in rivals) + nowhere
        m, p, j = one
        expected = math.exp(logit_BMLJ[0, m, p, j].item()) / total
        assert share_BMLJ[0, m, p, j].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e6])
def test_logits_of_any_size_give_finite_shares_and_gradients(norm: str, scale: float) -> None:
    fields = _fields(stride=2)
    logit_BMLJ = _logits(fields, scale).float().requires_grad_()
    share_BMLJ = coupling_softmax(logit_BMLJ, fields, norm)
    share_BMLJ.square().sum().backward()
    assert logit_BMLJ.grad is not None
    assert share_BMLJ.isfinite().all()
    assert logit_BMLJ.grad.isfinite().all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("nowhere", [False, True])
def test_gradients_are_those_of_the_function(norm: str, nowhere: bool) -> None:
    fields = ReceptiveFields(torch.tensor([[0, 1], [1, 2]]), 4)
    logit_BMLJ = torch.linspace(-1, 2, 16, dtype=torch.float64).reshape(1, 2, 4, 2)
    assert torch.autograd.gradcheck(
        lambda logit: coupling_softmax(logit, fields, norm, nowhere), [logit_BMLJ.requires_grad_()]
    )


@pytest.mark.parametrize("norm", NORMS)
def test_below_one_position_the_types_compete_whatever_the_norm(norm: str) -> None:
    logit_BMLJ = _logits(_fields(stride=2), scale=1)
    expected = torch.softmax(logit_BMLJ, dim=3)
    assert torch.equal(coupling_softmax(logit_BMLJ, None, norm), expected)
