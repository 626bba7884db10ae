"""Where capsules compute: in the precision of their weights."""

import contextlib

import torch


def without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    """Autocast off; the meta device, where a plan counts FLOPs, has none to switch."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)
