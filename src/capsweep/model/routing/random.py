"""Random couplings: a control (Paik, Kwak, Kim 2019, "Capsule Networks Need an Improved Routing
Algorithm").

    r_ij ~ U(0.8, 1.2)
    c_ij = r_ij / sum_k r_ik              over all parents k of child i
    v_j  = squash(sum_i c_ij u_hat_ij + bias_j)

draw: anew, in each step of training; fixed, once for a layer. The paper draws anew in each
iteration of routing; no iteration reads another, so that only the last is computed here. Draws of
training come from torch's generator, which each epoch seeds with the cell's seed, and all images of
a batch share one. Tests and evaluations use the fixed draw, so that they can be repeated. It is one
of the layer's weights, and those drawn after it are what they would be without it; layers of equal
size may have the same draw.

That couplings are divided by their sum is ours: it makes them shares, as those of the others.

Votes cost B I J P D multiplications; the fast paths are those of `dynamic`. Nothing but the bias is
learned.

Shape letters: B batch, M parent positions, L children below one, J parent types there, I children,
P child pose, D parent pose.
"""

from typing import Any

import torch
from torch import Tensor

from capsweep.model.routing import LayerSizes, dynamic

LOWEST, HIGHEST = 0.8, 1.2

reference, fast = dynamic.reference, dynamic.fast

IMPLS = dynamic.IMPLS


class RandomRouting(dynamic.DynamicRouting):
    """The routing of one layer. Owns a draw and the parents' bias [J, D]."""

    def __init__(self, draw: str, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, sizes=sizes)
        self.draw = draw
        self.register_buffer("draw_LJ", _draw_apart(sizes.children, sizes.parents))
        self.draw_LJ: Tensor

    def get_arguments(self) -> dict[str, Any]:
        """Return them with a draw for the prior: a softmax of logarithms divides by the sum."""
        draw_LJ = self.draw_LJ
        if self.training and self.draw == "anew":
            draw_LJ = torch.empty_like(draw_LJ).uniform_(LOWEST, HIGHEST)
        return {**super().get_arguments(), "prior_LJ": draw_LJ.log()}


def _draw_apart(*shape: int) -> Tensor:
    """Draw with a private generator seeded from torch's, whose state is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        seed = int(torch.randint(2**62, (), device="cpu"))
    drawn = torch.empty(shape, device="cpu")
    drawn.uniform_(LOWEST, HIGHEST, generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.get_default_device())
