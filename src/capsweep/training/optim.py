"""The optimiser of a cell: learning-rate schedule, what weight decay pulls at, fused kernels."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from capsweep.errors import ConfigError

KEY = "trainer.fused_optimizer"


def continuous_decay(
    step: int, *, lr: float, rate: float, steps: int, floor: float, warmup: int = 0
) -> float:
    """The factor on `lr` at an optimiser step: rate ** (step / steps), never below floor / lr; in
    the first `warmup` steps it rises to that in equal parts.

    Continuous, as `tf.train.exponential_decay` without staircase, which the authors' code uses.
    """
    risen = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return risen * max(rate ** (step / steps), floor / lr)


def parameter_groups(network: nn.Module, decayed: str) -> list[dict[str, Any]]:
    """The optimiser's groups. decayed: all parameters, or weights, which leaves biases and what a
    routing has one of for each parent alone, as the authors of "Matrix capsules with EM routing"
    do.
    """
    if decayed == "all":
        return [{"params": list(network.parameters())}]
    weights, others = [], []
    for name, parameter in network.named_parameters():
        is_weight = parameter.dim() > 1 and "bias" not in name.rpartition(".")[2]
        (weights if is_weight else others).append(parameter)
    return [{"params": weights}, {"params": others, "weight_decay": 0.0}]


def fused_keywords(config: Mapping[str, Any], find: Callable[[str], Any]) -> dict[str, bool]:
    """What `trainer.fused_optimizer` adds to the arguments of the optimiser.

    find: the class of a `_target_`. Raises ConfigError where that has no fused form.
    """
    if not config["trainer"]["fused_optimizer"]:
        return {}
    target = config["optim"]["optimizer"]["_target_"]
    if "fused" not in inspect.signature(find(target)).parameters:
        raise ConfigError(f"{KEY}: {target} has no fused form; set {KEY}=false")
    return {"fused": True}


def fit_loaded_state(optimizer: torch.optim.Optimizer) -> None:
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
                    state[name] = _fit_state(value, parameter, counts_on_device)


def _fit_state(value: Tensor, parameter: Tensor, counts_on_device: bool) -> Tensor:
    """A state with its parameter's strides; a count of steps where the kernel looks for it."""
    if value.dim() == 0:
        return value.to(parameter.device if counts_on_device else "cpu")
    if value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
