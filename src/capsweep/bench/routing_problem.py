"""The layer that routing is measured on: that of CapsNet on MNIST, and what one call of it does.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from capsweep.bench import device
from capsweep.bench.baselines import Route
from capsweep.bench.parity import Results
from capsweep.model.votes import Routed, Votes

Pass = Literal["forward", "forward + backward"]
PASSES: tuple[Pass, ...] = ("forward", "forward + backward")


@dataclass(frozen=True)
class Sizes:
    """B, I, J, P, D, T."""

    batch: int = 128
    children: int = 1152
    parents: int = 10
    child_pose: int = 8
    parent_pose: int = 16
    num_iters: int = 3

    def with_iterations(self, num_iters: int) -> "Sizes":
        """The same layer."""
        return replace(self, num_iters=num_iters)

    def flops(self, which: Pass) -> int:
        """Necessary operations: the votes once (their equal sum is one product of matrices, and
        counts as that), then an agreement and a weighted sum per further iteration. Backward counts
        twice forward, as usual; what is recomputed does not count.
        """
        votes = self.batch * self.children * self.parents * self.parent_pose
        forward = 2 * votes * self.child_pose + (self.num_iters - 1) * 4 * votes
        return forward if which == "forward" else 3 * forward


class Problem:
    """Votes, bias, and the gradients that come from above, drawn once."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype = torch.float32) -> None:
        self.sizes = sizes
        draw = torch.Generator().manual_seed(0)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            drawn = torch.randn(shape, generator=draw, dtype=torch.float64) * scale
            return drawn.to(device.device(), dtype)

        s = sizes
        self.pose_BIP = normal(s.batch, s.children, s.child_pose, scale=0.1)
        self.weight_IJDP = normal(s.children, s.parents, s.parent_pose, s.child_pose, scale=0.3)
        self.bias_JD = torch.full_like(self.weight_IJDP[0, :, :, 0], 0.1)
        self.gradients = (
            normal(s.batch, s.parents, s.parent_pose),
            normal(s.batch, s.parents),
        )

    def call(self, route: Route, which: Pass) -> Callable[[], object]:
        """One pass: forward alone without autograd, or with all gradients."""
        return (lambda: self.forward(route)) if which == "forward" else lambda: self.results(route)

    def forward(self, route: Route) -> Routed:
        """Without autograd."""
        with torch.no_grad():
            votes = Votes(self.pose_BIP, self.weight_IJDP)
            return route(votes, self.sizes.num_iters, self.bias_JD)

    def results(self, route: Route) -> Results:
        """Poses and activations of the parents, and the gradients of all inputs."""
        inputs = {
            "pose_BIP": self.pose_BIP.detach().requires_grad_(),
            "weight_IJDP": self.weight_IJDP.detach().requires_grad_(),
            "bias_JD": self.bias_JD.detach().requires_grad_(),
        }
        votes = Votes(inputs["pose_BIP"], inputs["weight_IJDP"])
        routed = route(votes, self.sizes.num_iters, inputs["bias_JD"])
        outputs = {"pose_BJD": routed.pose_BJD, "act_BJ": routed.act_BJ}
        found = torch.autograd.grad(tuple(outputs.values()), tuple(inputs.values()), self.gradients)
        gradients = {f"gradient of {name}": g for name, g in zip(inputs, found, strict=True)}
        return outputs | gradients
