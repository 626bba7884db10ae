"""Controls for routing by agreement: layers whose couplings do not come from agreement.

Each control is dynamic routing with one iteration, v_j = squash(sum_i c_ij u_hat_ij + bias_j). The
couplings c_ij are:

    uniform     c_ij = 1 / J                             equal
    static      c_i. = softmax_j b_ij                    b is learned, 0 at first, the same for
                                                         all images
    random      c_ij = r_ij / sum_k r_ik                 r_ij ~ U(0.8, 1.2)

A child below several positions divides itself among all parents at these positions; J is then the
number of all these parents. If dynamic routing is better than `static`, the reason is the agreement
in each image. The couplings of a control could be multiplied into the vote weights. The couplings
therefore change how the layer learns, but not which functions the layer can compute.

`random` is from Paik, Kwak, Kim 2019, "Capsule Networks Need an Improved Routing Algorithm". The
paper draws r_ij in each routing iteration. An iteration does not use the results of the previous
iteration, so only the last iteration is computed here. The division by the sum is our choice. The
couplings of a child therefore sum to 1, as in the other controls.

The option `draw` of `random` is "anew" (one draw per training step) or "fixed" (one draw per
layer). With "anew", each training step draws with torch's generator. At the start of each epoch
this generator is seeded from the seed of the cell and the epoch. All images of a batch share one
draw. With both values of `draw`, evaluation uses the fixed draw, so that its results can be
reproduced.

The fixed draw is stored with the weights of the layer. Making the fixed draw leaves the state of
torch's generator unchanged. All weights drawn later are therefore the same as in a network without
a fixed draw. For the same reason, two layers of equal size can have equal fixed draws.

Forming the votes costs B I J P D multiplications. The fast implementations are those of `dynamic`.

Shape letters: B batch, L children below a position, I children, J parents, P child pose, D parent
pose.
"""

import torch
from torch import Tensor

from capsweep.model.routing import LayerSizes, dynamic

IMPLS = dynamic.IMPLS
LOWEST, HIGHEST = 0.8, 1.2  # bounds of r_ij in `random`


class UniformRouting(dynamic.DynamicRouting):
    """Routing with equal couplings, c_ij = 1 / J; only the bias [J, D] of the parents is learned.

    Args:
        bias: Whether the parents have a bias.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    variant = "uniform"

    def __init__(self, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, sizes=sizes)


class StaticRouting(dynamic.DynamicRouting):
    """Routing with learned couplings that are the same for all images.

    The logits [L, J] of the couplings are learned and start at 0. The bias [J, D] is learned too.

    Args:
        bias: Whether the parents have a bias.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    variant = "static"

    def __init__(self, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, learned_prior=True, sizes=sizes)


class RandomRouting(dynamic.DynamicRouting):
    """Routing with random couplings (Paik, Kwak, Kim 2019); only the bias [J, D] is learned.

    Args:
        draw: "anew": one draw per training step. "fixed": one draw per layer. Evaluation always
            uses the fixed draw.
        bias: Whether the parents have a bias.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    variant = "random"

    def __init__(self, draw: str, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, sizes=sizes)
        self.draw = draw
        self.register_buffer("draw_LJ", _draw_privately(sizes.children, sizes.parents))
        self.draw_LJ: Tensor

    @property
    def prior_LJ(self) -> Tensor:  # noqa: N802 (shape letters)
        """The prior logits ln r_ij; the softmax of ln r_ij is r_ij / sum_k r_ik."""
        draw_LJ = self.draw_LJ
        if self.training and self.draw == "anew":
            draw_LJ = torch.empty_like(draw_LJ).uniform_(LOWEST, HIGHEST)
        return draw_LJ.log()


def _draw_privately(*shape: int) -> Tensor:
    """Draw from U(0.8, 1.2) without changing the state of torch's generator.

    A private generator draws the numbers. Its seed is the next number of torch's generator.
    """
    with torch.random.fork_rng(devices=[]):
        seed = int(torch.randint(2**62, (), device="cpu"))
    drawn = torch.empty(shape, device="cpu")
    drawn.uniform_(LOWEST, HIGHEST, generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.get_default_device())
