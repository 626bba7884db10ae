"""Controls of routing by agreement: couplings that do not come from agreement. All are dynamic
routing with one iteration, v_j = squash(sum_i c_ij u_hat_ij + bias_j), of a prior of its logits.

    uniform     c_ij = 1 / J                             equal
    static      c_i. = softmax_j b_ij                    b learned, 0 at first; no image changes it
    random      c_ij = r_ij / sum_k r_ik                 r_ij ~ U(0.8, 1.2)

Where a child stands below several positions, it divides itself among all parents above it. What
dynamic routing gains over `static` is due to agreement in each image. The vote weights could absorb
its couplings: they change how the layer learns, not what it can compute.

`random` is of Paik, Kwak, Kim 2019, "Capsule Networks Need an Improved Routing Algorithm". draw:
anew, in each step of training; fixed, once for a layer. The paper draws anew in each iteration of
routing; no iteration reads another, so that only the last is computed here. Draws of training come
from torch's generator, which each epoch seeds with the cell's seed, and all images of a batch share
one. Tests and evaluations use the fixed draw, so that they can be repeated. It is one of the
layer's weights, and those drawn after it are what they would be without it; layers of equal size
may have the same draw. That couplings are divided by their sum is ours: it makes them shares, as
those of the others.

Votes cost B I J P D multiplications; the fast paths are those of `dynamic`.

Shape letters: B batch, L children below a position, I children, J parents, P child pose, D parent
pose.
"""

import torch
from torch import Tensor

from capsweep.model.routing import LayerSizes, dynamic

IMPLS = dynamic.IMPLS
LOWEST, HIGHEST = 0.8, 1.2


class UniformRouting(dynamic.DynamicRouting):
    """The routing of one layer. Owns the parents' bias [J, D]."""

    variant = "uniform"

    def __init__(self, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, sizes=sizes)


class StaticRouting(dynamic.DynamicRouting):
    """The routing of one layer. Owns b [I, J] and the parents' bias [J, D]."""

    variant = "static"

    def __init__(self, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, learned_prior=True, sizes=sizes)


class RandomRouting(dynamic.DynamicRouting):
    """The routing of one layer. Owns a draw and the parents' bias [J, D]."""

    variant = "random"

    def __init__(self, draw: str, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, sizes=sizes)
        self.draw = draw
        self.register_buffer("draw_LJ", _draw_apart(sizes.children, sizes.parents))
        self.draw_LJ: Tensor

    @property
    def prior_LJ(self) -> Tensor:  # noqa: N802 (shape letters)
        """Return the logarithms of a draw: their softmax divides it by the sum."""
        draw_LJ = self.draw_LJ
        if self.training and self.draw == "anew":
            draw_LJ = torch.empty_like(draw_LJ).uniform_(LOWEST, HIGHEST)
        return draw_LJ.log()


def _draw_apart(*shape: int) -> Tensor:
    """Draw with a private generator seeded from torch's, whose state is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        seed = int(torch.randint(2**62, (), device="cpu"))
    drawn = torch.empty(shape, device="cpu")
    drawn.uniform_(LOWEST, HIGHEST, generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.get_default_device())
