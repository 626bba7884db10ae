"""Shares of a child at extremes; the oracles of `em` and `dynamic` have all rules link by link.

Shape letters as in capsweep.model.routing.
"""

import pytest
import torch

from capsweep.model import convolution
from capsweep.model.routing import ReceptiveFields, coupling_softmax

NORMS = ("all", "types", "positions")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e6])
def test_logits_of_any_size_give_finite_shares_and_gradients(norm: str, scale: float) -> None:
    grid = convolution.PositionGrid(5, 6)  # whose last column has no parent
    fields = ReceptiveFields(torch.tensor(convolution.list_fields(grid, 3, stride=2)), 30)
    drawn_BMLJ = torch.randn(2, 4, 18, 3, generator=torch.Generator().manual_seed(4))
    logit_BMLJ = (scale * drawn_BMLJ).requires_grad_()
    share_BMLJ = coupling_softmax(logit_BMLJ, fields, norm)
    share_BMLJ.square().sum().backward()
    assert logit_BMLJ.grad is not None
    assert share_BMLJ.isfinite().all()
    assert logit_BMLJ.grad.isfinite().all()
