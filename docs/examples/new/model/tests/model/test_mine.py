"""Test of the network that is built from its configuration."""

import torch

from capsweep.config import compose
from capsweep.data.batches import Batch
from capsweep.training import build


def test_a_step_reaches_every_parameter() -> None:
    """Check that one backward pass gives each parameter a finite gradient that is not zero."""
    config = compose.cell(["model=mine"]).config
    torch.manual_seed(0)
    network, objective = build.build_network(config), build.build_objective(config)
    batch = Batch(torch.rand(4, 1, 28, 28), torch.tensor([3, 1, 4, 1]))
    objective(network, batch).total.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
