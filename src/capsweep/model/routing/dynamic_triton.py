"""Dynamic routing of linear votes by Triton kernels, for NVIDIA GPUs; the mathematics is `dynamic`.

The logits of iteration t are prior_ij + u_hat_ij . V_j with V = v_0 + ... + v_(t-1), so none are
kept. Backwards, with gs the gradient by s, from the last iteration to the first:

    gs_j  = gradient of squash at s_j, of the sum of all gV_j of the iterations after it
    gl_ij = c_ij (u_hat_ij . gs_j - sum_k c_ik u_hat_ik . gs_k)
    gV_j  = sum_i gl_ij u_hat_ij
    g u_hat_ij = sum_t c_ij gs_j + gl_ij V_j        dW_ij = sum_b g u_hat_ij u_i^T
                                                    du_i  = sum_j W_ij^T g u_hat_ij

The votes are never in memory: `dynamic_kernels` says how. For the backward pass the couplings of
the iterations after the first are kept, (T - 1) B I J numbers where the votes are B I J D. Two runs
on one machine have the same bits.

Triton is imported when a layer is routed, and with it all that needs it. Its interpreter,
TRITON_INTERPRET=1 before that, routes on a CPU: exact, and slow.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations, of
couplings those after the first.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsweep.errors import ConfigError
from capsweep.model.capsules import squash, squash_gradient, without_autocast
from capsweep.model.routing.base import exclude_from_compiling
from capsweep.model.routing.dynamic_fast import (
    DynamicOptions,
    make_trace_step,
    softmax_over_parents,
)
from capsweep.model.votes import LocalVotes, Routed, Votes

if TYPE_CHECKING:
    from capsweep.model.routing.dynamic_kernels import KernelVotes, VoteGradients

INSTEAD = "set routing.impl=fast or routing.impl=reference"


def triton_route(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    with_trace: bool = False,
    *,
    prior_LJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
) -> Routed:
    """The same as `dynamic.reference`, on a GPU, and in single precision inside autocast.

    Couplings and trace have no gradients. Raises ValueError as the reference does, and ConfigError
    for votes that are not linear, without triton, and on another device than a GPU.
    """
    options = DynamicOptions(num_iters, none_of_the_above, gradient)
    if not isinstance(votes, Votes):
        raise ConfigError(
            f"routing.impl=triton routes linear votes alone (model=capsnet); {INSTEAD}"
        )
    _check_device(votes.pose_BIP)
    return exclude_from_compiling(_route_by_kernels)(votes, options, bias_JD, prior_LJ, with_trace)


def _check_device(pose_BIP: Tensor) -> None:
    """Raise ConfigError where no kernel can be launched."""
    try:
        from capsweep.model.routing.dynamic_kernels import INTERPRETED, has_numbers
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError(
            f"routing.impl=triton needs triton, which is not installed: install it, or {INSTEAD}"
        ) from error
    if not pose_BIP.is_cuda and not INTERPRETED and has_numbers(pose_BIP):
        raise ConfigError(
            f"routing.impl=triton needs a GPU, and these votes are on {pose_BIP.device.type}: set "
            f"trainer.accelerator=gpu, or {INSTEAD} (TRITON_INTERPRET=1 in the environment "
            "interprets the kernels on a CPU, for tests)"
        )


def _make_votes(pose_BIP: Tensor, weight_IPJD: Tensor) -> "KernelVotes":
    from capsweep.model.routing.dynamic_kernels import KernelVotes  # it imports triton

    return KernelVotes(pose_BIP, weight_IPJD)


class SavedTensors(NamedTuple):
    """For the backward pass."""

    pose_BIP: Tensor
    weight_IPJD: Tensor
    first_IJ: Tensor
    coupling_TBIJ: Tensor
    sum_TBJD: Tensor  # of all iterations, as what they saw: the sum of the v up to one
    seen_TBJD: Tensor


def _route_by_kernels(
    votes: Votes,
    options: DynamicOptions,
    bias_JD: Tensor | None,
    prior_IJ: Tensor | None,
    with_trace: bool,
) -> Routed:
    """`triton_route`, its arguments checked."""
    dtype = torch.promote_types(votes.pose_BIP.dtype, votes.weight_IJDP.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    with without_autocast(votes.device.type):
        v_BJD, v_TBJD, first_IJ, coupling_TBIJ = _TritonFunction.apply(
            votes.pose_BIP.to(dtype),
            votes.weight_IJDP.to(dtype),
            None if prior_IJ is None else prior_IJ.to(dtype),
            None if bias_JD is None else bias_JD.to(dtype),
            options,
        )
        couplings = [first_IJ.expand(len(v_BJD), -1, -1), *coupling_TBIJ]
        trace = None
        if with_trace:
            layer = votes.pose_BIP.to(dtype), votes.weight_IJDP.to(dtype)
            trace = [make_trace_step(*layer, *one) for one in zip(couplings, v_TBJD, strict=True)]
        return Routed(v_BJD, torch.linalg.vector_norm(v_BJD, dim=-1), couplings[-1], trace)


class _TritonFunction(torch.autograd.Function):
    """v of the last iteration, and without gradients: v of all, the first couplings, the others."""

    @staticmethod
    def forward(
        ctx: Any,
        pose_BIP: Tensor,
        weight_IJDP: Tensor,
        prior_IJ: Tensor | None,
        bias_JD: Tensor | None,
        options: DynamicOptions,
    ) -> tuple[Tensor, ...]:
        weight_IPJD = weight_IJDP.permute(0, 3, 1, 2).contiguous()
        votes = _make_votes(pose_BIP.contiguous(), weight_IPJD)
        prior_IJ = None if prior_IJ is None else prior_IJ.contiguous()
        bias = 0 if bias_JD is None else bias_JD
        first_IJ = _first_couplings(weight_IJDP, prior_IJ, options.none_of_the_above)
        sums = [votes.sum_first(first_IJ) + bias]
        poses = [squash(sums[0])]
        seen = [poses[0]]
        coupling_TBIJ = pose_BIP.new_empty(options.num_iters - 1, len(pose_BIP), *first_IJ.shape)
        for coupling_BIJ in coupling_TBIJ:
            sum_BJD = votes.sum_votes(seen[-1], prior_IJ, options.none_of_the_above, coupling_BIJ)
            sums.append(sum_BJD + bias)
            poses.append(squash(sums[-1]))
            seen.append(seen[-1] + poses[-1])
        stacked = torch.stack(sums), torch.stack(seen)
        saved = SavedTensors(votes.pose_BIP, weight_IPJD, first_IJ, coupling_TBIJ, *stacked)
        ctx.save_for_backward(*saved)
        ctx.options = options
        ctx.set_materialize_grads(False)
        v_TBJD = torch.stack(poses)
        ctx.mark_non_differentiable(v_TBJD, first_IJ, coupling_TBIJ)
        return poses[-1], v_TBJD, first_IJ, coupling_TBIJ

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        by_v_BJD = grad_outputs[0]  # of the only output that has one
        if by_v_BJD is None:
            return (None,) * 5
        with without_autocast(by_v_BJD.device.type):
            return *_differentiate_routing(ctx, by_v_BJD), None


@once_differentiable
def _differentiate_routing(
    ctx: Any, by_v_BJD: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    saved, full = SavedTensors(*ctx.saved_tensors), ctx.options.is_full
    _, _, with_prior, with_bias, _ = ctx.needs_input_grad
    votes = _make_votes(saved.pose_BIP, saved.weight_IPJD)
    by_sum_TBJD, by_logit_TBIJ = _run_backwards(votes, saved, by_v_BJD, full, with_prior)
    last = len(by_sum_TBJD) - 1
    since = 1 if full else max(1, last)  # the iterations after the first that have a gradient
    by_prior_IJ = by_logit_TBIJ[since - 1 :].sum(dim=(0, 1)) if with_prior else None
    parts: list[VoteGradients] = []
    if full or last == 0:
        by_first_IJ, part = votes.differentiate_first(saved.first_IJ, by_sum_TBJD[0])
        by_prior_IJ = None if by_prior_IJ is None else by_prior_IJ + by_first_IJ
        parts.append(part)
    if last > 0:
        weighted = saved.coupling_TBIJ[since - 1 :], by_sum_TBJD[since:]
        seen = (by_logit_TBIJ, saved.seen_TBJD) if full else None
        parts.append(votes.differentiate_votes(weighted, seen))
    by_pose_BIP, by_weight_IPJD = parts[0]
    for part in parts[1:]:
        by_pose_BIP, by_weight_IPJD = by_pose_BIP + part.pose_BIP, by_weight_IPJD + part.weight_IPJD
    return (
        by_pose_BIP,
        by_weight_IPJD.permute(0, 2, 3, 1),
        by_prior_IJ,
        by_sum_TBJD.sum(dim=(0, 1)) if with_bias else None,
    )


def _run_backwards(
    votes: "KernelVotes", saved: SavedTensors, by_v_BJD: Tensor, full: bool, with_prior: bool
) -> tuple[Tensor, Tensor]:
    """The gradients by the sums of all iterations, 0 where none flows, and by the logits of those
    after the first, unwritten there.
    """
    by_sum_TBJD = torch.zeros_like(saved.sum_TBJD)
    by_logit_TBIJ = torch.empty_like(saved.coupling_TBIJ)
    by_seen_BJD = torch.zeros_like(by_v_BJD)
    last = len(by_sum_TBJD) - 1
    for t in range(last, -1 if full else last - 1, -1):
        by_sum_TBJD[t] = squash_gradient(saved.sum_TBJD[t], by_v_BJD)
        if t > 0 and (full or with_prior):
            coupling_BIJ = saved.coupling_TBIJ[t - 1]
            by_seen_BJD += votes.differentiate_sums(
                by_sum_TBJD[t], coupling_BIJ, by_logit_TBIJ[t - 1]
            )
            by_v_BJD = by_seen_BJD  # every v before is part of what was seen
    return by_sum_TBJD, by_logit_TBIJ


def _first_couplings(weight_IJDP: Tensor, prior_IJ: Tensor | None, with_none: bool) -> Tensor:
    """[I, J]."""
    if prior_IJ is None:
        prior_IJ = weight_IJDP.new_zeros(weight_IJDP.shape[:2])
    return softmax_over_parents(prior_IJ.T, with_none).T.contiguous()
