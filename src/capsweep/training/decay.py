"""Which parameters weight decay pulls at."""

from typing import Any

from torch import nn

OWN_DECAY = {"weight_decay": 0.0}


def groups(network: nn.Module, decayed: str) -> list[dict[str, Any]]:
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
    return [{"params": weights}, {"params": others} | OWN_DECAY]
