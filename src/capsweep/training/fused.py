"""Fused optimisers: one kernel updates every parameter, where torch would run a dozen operations on
each.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from capsweep.errors import ConfigError

KEY = "trainer.fused_optimizer"


def keywords(config: Mapping[str, Any], find: Callable[[str], Any]) -> dict[str, bool]:
    """What `trainer.fused_optimizer` adds to the arguments of the optimiser.

    find: the class of a `_target_`. Raises ConfigError where that has no fused form.
    """
    if not config["trainer"]["fused_optimizer"]:
        return {}
    target = config["optim"]["optimizer"]["_target_"]
    if "fused" not in inspect.signature(find(target)).parameters:
        raise ConfigError(f"{KEY}: {target} has no fused form; set {KEY}=false")
    return {"fused": True}


def settle(optimizer: torch.optim.Optimizer) -> None:
    """After its state was loaded: what was saved by another implementation fits this one.

    torch takes over the saved groups' choice of kernel, and the saved moments' layout. A fused
    kernel walks through memory, so a moment in another layout than its parameter's would be mixed
    up without an error.
    """
    fused = optimizer.defaults.get("fused")
    for group in optimizer.param_groups:
        if "fused" in group:
            group["fused"] = fused
        counts_on_device = bool(fused or group.get("capturable"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = _fitting(value, parameter, counts_on_device)


def _fitting(value: Tensor, parameter: Tensor, counts_on_device: bool) -> Tensor:
    """A state with its parameter's strides; a count of steps where the kernel looks for it."""
    if value.dim() == 0:
        return value.to(parameter.device if counts_on_device else "cpu")
    if value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
