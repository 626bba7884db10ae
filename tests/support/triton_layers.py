"""Dynamic routing by Triton kernels beside the reference, with options.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

from collections.abc import Sequence
from typing import Any

import torch
from procedure_1 import Layer, Size
from torch import Tensor

from capsweep.model.routing import dynamic
from capsweep.model.routing.dynamic_triton import triton_route
from capsweep.model.votes import Routed, Votes

SMALL: Size = (2, 2, 3, 4, 5)


def placed(chosen: Layer, device: str, dtype: torch.dtype = torch.float64) -> Layer:
    """The same numbers there, to be differentiated."""
    return Layer(*[x.to(device, dtype).requires_grad_() for x in chosen])


def routed_by(
    route: Any, chosen: Layer, num_iters: int, combination: Sequence[bool], **options: Any
) -> Routed:
    """Route with a combination of bias, prior and none-of-the-above."""
    bias, prior, none = combination
    return route(
        Votes(chosen.pose_BIP, chosen.weight_IJDP),
        num_iters,
        chosen.bias_JD if bias else None,
        prior_LJ=chosen.prior_IJ if prior else None,
        none_of_the_above=none,
        **options,
    )


def gradients_of(routed: Routed, chosen: Layer) -> list[Tensor]:
    """By all leaves, of a function that every number of poses and activations moves."""
    steps = torch.linspace(-1, 2, routed.pose_BJD.numel(), dtype=torch.float64)
    weight_BJD = steps.to(routed.pose_BJD).view_as(routed.pose_BJD)
    value = (routed.pose_BJD * weight_BJD).sum() + routed.act_BJ.square().sum()
    return list(torch.autograd.grad(value, chosen, allow_unused=True, materialize_grads=True))


def outputs_of(routed: Routed) -> list[Tensor]:
    """All that is returned, the trace included."""
    traced = [tensor for step in routed.trace or () for tensor in step.values()]
    assert routed.coupling_BIJ is not None
    return [routed.pose_BJD, routed.act_BJ, routed.coupling_BIJ, *traced]


def assert_as_reference(
    chosen: Layer,
    num_iters: int = 3,
    combination: Sequence[bool] = (True, True, True),
    gradient: str = "full",
    tolerance: float = 1e-9,
) -> None:
    """What is returned, and the gradients by all leaves."""
    options = {"with_trace": True, "gradient": gradient}
    expected = routed_by(dynamic.reference, chosen, num_iters, combination, **options)
    found = routed_by(triton_route, chosen, num_iters, combination, **options)
    torch.testing.assert_close(
        outputs_of(found), outputs_of(expected), rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(
        gradients_of(found, chosen), gradients_of(expected, chosen), rtol=tolerance, atol=tolerance
    )
