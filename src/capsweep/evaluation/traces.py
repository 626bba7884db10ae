"""What the routing of a trained network traced of some images."""

import inspect
from collections.abc import Mapping

import torch
from torch import Tensor

from capsweep.evaluation.trained import Trained


def of(trained: Trained, images_BCHW: Tensor) -> Mapping[str, list[dict[str, Tensor]]]:
    """By layer, a mapping of tensors for each iteration; empty where the network traces nothing."""
    if "with_trace" not in inspect.signature(trained.network.forward).parameters:
        return {}
    with torch.no_grad():
        return trained(images_BCHW, with_trace=True).traces or {}
