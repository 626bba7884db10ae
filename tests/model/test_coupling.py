"""Competition for a child against sums over all pairs of its parents.

Shape letters as in capsweep.model.routing.
"""

from collections import defaultdict

import numpy as np
import pytest
import torch

from capsweep.model import convolution
from capsweep.model.routing import ReceptiveFields, coupling_softmax

NORMS = ("all", "types", "positions")
TYPES = 2  # of children, at each position


def _fields(stride: int) -> ReceptiveFields:
    """Of 3x3 kernels on a 5x6 grid; with stride 2 the last column has no parent."""
    grid = convolution.PositionGrid(5, 6)
    return ReceptiveFields(
        torch.tensor(convolution.list_fields(grid, 3, stride)), grid.num_positions
    )


def _logits(fields: ReceptiveFields, scale: float) -> torch.Tensor:
    positions, offsets = fields.child_MK.shape
    generator = torch.Generator().manual_seed(positions)
    shape = (2, positions, TYPES * offsets, 3)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("nowhere", [False, True])
def test_a_share_is_an_exponential_over_the_sum_of_those_of_its_rivals(
    stride: int, norm: str, nowhere: bool
) -> None:
    fields = _fields(stride)
    logit_BMLJ = _logits(fields, scale=1)
    share_MLJ = coupling_softmax(logit_BMLJ, fields, norm, nowhere)[0]
    odds_MLJ = np.exp(logit_BMLJ[0].numpy())
    totals: dict[tuple[int, ...], float] = defaultdict(float)
    rivals = {}  # by place: the child, and what its rivals have in common
    for m, place, j in np.ndindex(odds_MLJ.shape):
        child = int(fields.child_MK[m, place // TYPES]), place % TYPES
        shared = {"all": (), "types": (m,), "positions": (j,)}[norm]
        rivals[m, place, j] = *child, *shared
        totals[*child, *shared] += odds_MLJ[m, place, j]
    for place, group in rivals.items():
        expected = odds_MLJ[place] / (totals[group] + nowhere)
        assert share_MLJ[place].item() == pytest.approx(expected, abs=1e-12)


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
