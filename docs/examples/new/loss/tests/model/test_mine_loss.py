"""Tests of the loss against numbers that are computed by hand."""

import pytest
import torch

from capsweep.model.mine_loss import mine_loss


def test_near_lengths_count_squared_and_far_ones_linearly() -> None:
    """Compare the loss of two examples with its formula."""
    lengths = torch.tensor([[0.8, 0.1], [0.2, 0.2]])
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # example 0: 0.2^2 / 2 + 0.1^2 / 2 = 0.025
    # example 1: 0.2^2 / 2 + 0.5 (0.8 - 0.25) = 0.295
    loss = mine_loss(lengths, targets, delta=0.5)
    assert loss.item() == pytest.approx((0.025 + 0.295) / 2)
