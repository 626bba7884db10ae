"""Dynamic routing of linear votes that are never formed, and its gradient by recomputation.

The mathematics is in `dynamic`. The logits of iteration t are b_ij = prior_ij + u_hat_ij . V_j with
V = v_0 + ... + v_(t-1), so none are kept, and both things an iteration does with the votes

    agreement     u_hat_ij . V_j         = u_i . (W_ij^T V_j)
    weighted sum  sum_i c_ij u_hat_ij    = sum_i W_ij (c_ij u_i)

are products of matrices, over all images and many children at once. The first iteration, whose
couplings no image changes, is one product. Backwards, with gs_j the gradient by s_j:

    gc_ij = u_hat_ij . gs_j
    gl_ij = c_ij (gc_ij - sum_k c_ik gc_ik)
    gV_j  = sum_i gl_ij u_hat_ij

are the same two, and the gradient of the votes is a sum over the iterations of terms of rank two,

    g u_hat_ij = sum_t c_ij gs_j + gl_ij V_j

formed for a few children at a time, so that it stays in the cache. For the backward pass sums and
couplings are kept: T B J (D + I) numbers, where the votes are B I J D.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

from typing import Any

import torch
from torch import Tensor

from capsweep.model.autocast import without_autocast
from capsweep.model.routing.dynamic_gradient import Backward
from capsweep.model.routing.dynamic_iterations import (
    Iteration,
    Linear,
    Options,
    iterate,
    traced,
)
from capsweep.model.squash import squash
from capsweep.model.votes import Routed, Votes


def route_linear(
    votes: Votes,
    prior_IJ: Tensor | None,
    bias_JD: Tensor | None,
    options: Options,
    with_trace: bool,
) -> Routed:
    """Route, as `dynamic.reference` says; couplings and the trace have no gradients."""
    weight_IJDP = votes.weight_IJDP
    pose_BIP = votes.pose_BIP.to(weight_IJDP.dtype)
    prior_JI1 = weight_IJDP.new_zeros(weight_IJDP.shape[1], len(weight_IJDP), 1)
    if prior_IJ is not None:
        prior_JI1 = prior_IJ.T.contiguous()[..., None]
    if options.num_iters == 1:
        linear = Linear(pose_BIP, weight_IJDP)
        done = iterate(linear, prior_JI1, bias_JD, options)
        v_BJD = squash(done[0].s_JDB, dim=1).permute(2, 0, 1).contiguous()
    else:
        v_BJD, *flat = Routing.apply(pose_BIP, weight_IJDP, prior_JI1, bias_JD, options)
        done = [Iteration(None, *pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
    trace = [_traced(pose_BIP, weight_IJDP, one) for one in done] if with_trace else None
    return Routed(
        pose_BJD=v_BJD,
        act_BJ=torch.linalg.vector_norm(v_BJD, dim=-1),
        coupling_BIJ=_of_images(done[-1], len(pose_BIP)),
        trace=trace,
    )


def _of_images(iteration: Iteration, num_images: int) -> Tensor:
    """Its couplings [B, I, J]."""
    return iteration.coupling_JIB.detach().permute(2, 1, 0).expand(num_images, -1, -1)


def _traced(pose_BIP: Tensor, weight_IJDP: Tensor, iteration: Iteration) -> dict[str, Tensor]:
    v_BJD = squash(iteration.s_JDB.detach(), dim=1).permute(2, 0, 1)
    return traced(pose_BIP, weight_IJDP, _of_images(iteration, len(pose_BIP)), v_BJD)


class Routing(torch.autograd.Function):
    """pose_BIP, weight_IJDP, prior_JI1, bias_JD -> v_BJD, differentiable, and of every iteration
    coupling_JIB and s_JDB, which are not.
    """

    @staticmethod
    def forward(
        ctx: Any,
        pose_BIP: Tensor,
        weight_IJDP: Tensor,
        prior_JI1: Tensor,
        bias_JD: Tensor | None,
        options: Options,
    ) -> tuple[Tensor, ...]:
        done = iterate(Linear(pose_BIP, weight_IJDP), prior_JI1, bias_JD, options)
        flat = [tensor for each in done for tensor in (each.coupling_JIB, each.s_JDB)]
        ctx.save_for_backward(pose_BIP, weight_IJDP, *flat)
        ctx.mark_non_differentiable(*flat)
        ctx.set_materialize_grads(False)
        ctx.options = options
        return squash(done[-1].s_JDB, dim=1).permute(2, 0, 1).contiguous(), *flat

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        by_v_BJD = grad_outputs[0]  # of the only output that has one
        if by_v_BJD is None:
            return (None,) * 5
        if torch.is_grad_enabled():
            raise RuntimeError(
                "routing.impl=fast has no second derivative; set routing.impl=reference"
            )
        with without_autocast(by_v_BJD.device.type):
            return _gradients(ctx, by_v_BJD)


def _gradients(ctx: Any, v_BJD: Tensor) -> tuple[Tensor | None, ...]:
    """By the inputs of `Routing`."""
    pose_BIP, weight_IJDP, *flat = ctx.saved_tensors
    _, _, with_prior, with_bias, _ = ctx.needs_input_grad
    backward = Backward(Linear(pose_BIP, weight_IJDP), _restored(flat), ctx.options)
    backward.run(v_BJD.permute(1, 2, 0).contiguous(), with_prior)
    by_weight_IJDP, by_pose_BIP = backward.by_weights_and_poses(weight_IJDP)
    by_prior_JI1 = backward.prior_JI[..., None] if with_prior else None
    by_bias_JD = backward.bias_JD if with_bias else None
    return by_pose_BIP, by_weight_IJDP, by_prior_JI1, by_bias_JD, None


def _restored(flat: list[Tensor]) -> list[Iteration]:
    """V is the sum of all v before."""
    done: list[Iteration] = []
    seen_JDB = None
    for coupling_JIB, s_JDB in zip(flat[::2], flat[1::2], strict=True):
        done.append(Iteration(seen_JDB, coupling_JIB, s_JDB))
        v_JDB = squash(s_JDB, dim=1)
        seen_JDB = v_JDB if seen_JDB is None else seen_JDB + v_JDB
    return done
