"""Learned couplings that no image changes: a control, dynamic routing with one iteration and a
learned prior.

    c_i. = softmax_j b_ij                     b learned, 0 at first
    v_j  = squash(sum_i c_ij u_hat_ij + bias_j)

What dynamic routing gains over this is due to agreement in each image. The vote weights could
absorb the couplings: they change how the layer learns, not what it can compute.

Votes cost B I J P D multiplications; the fast paths are those of `dynamic`. b has I J parameters.

Shape letters: B batch, I children, J parents, P child pose, D parent pose.
"""

from capsweep.model.routing import LayerSizes, dynamic

reference, fast = dynamic.reference, dynamic.fast

IMPLS = dynamic.IMPLS


class StaticRouting(dynamic.DynamicRouting):
    """The routing of one layer. Owns b [I, J] and the parents' bias [J, D]."""

    def __init__(self, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, learned_prior=True, sizes=sizes)
