"""Equal couplings: the control of every routing, dynamic routing with one iteration.

    v_j = squash(sum_i u_hat_ij / J + bias_j)

Where a child stands below several positions, 1 / J is one part for each parent above it.

Votes cost B I J P D multiplications; the fast paths are those of `dynamic`. Nothing but the bias is
learned.

Shape letters: B batch, I children, J parents, P child pose, D parent pose.
"""

from capsweep.model.routing import LayerSizes, dynamic

reference, fast = dynamic.reference, dynamic.fast

IMPLS = dynamic.IMPLS


class UniformRouting(dynamic.DynamicRouting):
    """The routing of one layer. Owns the parents' bias [J, D]."""

    def __init__(self, bias: bool, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(1, bias, impl, sizes=sizes)
