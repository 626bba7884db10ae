"""How active each layer of capsules is before training: too silent or too saturated, nothing is
learned.

"About half of the capsules should be active at the start" (the authors of "Matrix capsules with EM
routing", on their choice of first weights).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from capsweep.data.randomness import RankShare
from capsweep.lightning import Callback, LightningModule, Trainer
from capsweep.model.capsules import PrimaryCapsules
from capsweep.model.matrix_capsnet import CapsuleLayer
from capsweep.model.votes import Routed
from capsweep.training import distributed

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class FirstActivations(Callback):
    """Notes the quantiles of every layer's activations in the very first training step.

    `quantiles`: layer -> quantile -> activation; nothing of layers without capsules. It looks
    at the forward pass that the step makes anyway, which is not compiled, and travels in the
    checkpoint.
    """

    def __init__(self) -> None:
        self.quantiles: dict[str, dict[str, float]] = {}
        self.hooks: list[RemovableHandle] = []

    def state_dict(self) -> dict[str, Any]:
        return {"quantiles": self.quantiles}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.quantiles = dict(state_dict["quantiles"])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > 0:
            return
        # Compiled code would be compiled once more for this one step that is looked at.
        torch.compiler.set_stance("force_eager")
        for name, module in pl_module.get_submodule("network").named_modules():
            note = partial(self._note_activations, name, batch.share)
            self.hooks.append(module.register_forward_hook(note))

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._remove_hooks()

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        if self.hooks:
            torch.compiler.set_stance("default")
        while self.hooks:
            self.hooks.pop().remove()

    def _note_activations(
        self, name: str, share: RankShare | None, module: nn.Module, _: Any, output: Any
    ) -> None:
        active = find_activations(module, output)
        if active is None:
            return
        if share is not None:
            active = distributed.gather_rows(
                [(active.detach().float(), share, share.training_rows)]
            )
        self.quantiles[name] = measure_quantiles(active)


def find_activations(module: nn.Module, output: Any) -> Tensor | None:
    """Of the capsules that a layer returned; None for other layers, and for the routing inside a
    layer, which returns what the layer does.
    """
    if isinstance(module, PrimaryCapsules):
        return torch.linalg.vector_norm(output, dim=-1)
    if isinstance(output, CapsuleLayer):
        return output.act_BNI
    if isinstance(output, Routed) and hasattr(module, "routing"):
        return output.act_BJ
    return None


def measure_quantiles(active: Tensor) -> dict[str, float]:
    """By name: q0, q10, ..., q100."""
    # torch.quantile takes no more than 2^24 values.
    levels = np.quantile(active.detach().float().cpu().numpy(), QUANTILES).tolist()
    return {f"q{100 * q:.0f}": value for q, value in zip(QUANTILES, levels, strict=True)}
