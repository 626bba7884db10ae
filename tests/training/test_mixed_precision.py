"""`precision: bf16-mixed`: products in bfloat16; capsules, routing and losses in float32."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsweep.config import compose
from capsweep.data.batches import Batch
from capsweep.model.capsnet import ClassCapsules
from capsweep.model.capsules import PrimaryCapsules
from capsweep.model.matrix_capsnet import MatrixCapsules, MatrixPrimary
from capsweep.training import build

MATRIX = ["model=matrix_capsnet_tiny", "loss=spread"]
NETWORKS = {
    "capsnet": ["model=capsnet", "model.conv.channels=8", "model.primary.types=2"],
    "capsnet_small": ["model=capsnet_small"],
    "cnn_small": ["model=cnn_small"],
    "matrix, dynamic": [*MATRIX, "routing=dynamic"],
    "matrix, em": [*MATRIX, "routing=em"],
}
CAPSULES = (PrimaryCapsules, ClassCapsules, MatrixPrimary, MatrixCapsules)


@pytest.mark.parametrize("overrides", NETWORKS.values(), ids=NETWORKS)
def test_convolutions_are_bfloat16_and_capsules_and_losses_float32(overrides: list[str]) -> None:
    config = compose.cell([*overrides, "precision=bf16-mixed"]).config
    torch.manual_seed(0)
    network, kinds = build.build_network(config), {}
    for name, module in network.named_modules():
        if isinstance(module, (nn.Conv2d, *CAPSULES)):

            def note(module: nn.Module, _: Any, output: Any, name: str = name) -> None:
                outputs = [output] if isinstance(output, Tensor) else output
                tensors = [value for value in outputs if isinstance(value, Tensor)]
                kinds[name, type(module)] = {tensor.dtype for tensor in tensors}

            module.register_forward_hook(note)
    batch = Batch(torch.rand(2, *config["dataset"]["image_shape"]), torch.arange(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = build.build_objective(config)(network, batch)
    losses.total.backward()
    assert losses.total.dtype == losses.scores_BN.dtype == torch.float32
    assert kinds
    for (name, kind), found in kinds.items():
        expected = torch.float32 if kind in CAPSULES else torch.bfloat16
        assert found == {expected}, name
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
        assert parameter.dtype == torch.float32
