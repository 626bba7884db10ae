"""Cells that are computed in float64, so that nothing but rounding of 1e-16 may differ.

In float32 Adam makes whole steps of gradients that are mere rounding (a bias before batch
normalisation has no other), and a difference of substance could hide behind those.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from capsweep.training import fit


@contextmanager
def in_double() -> Iterator[None]:
    """While the block lasts, precision=32 computes in float64, the losses included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "PRECISION", {**fit.PRECISION, "32": "64-true"})
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield
