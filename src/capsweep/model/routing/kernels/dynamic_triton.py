"""Dynamic routing of linear votes by Triton kernels, for NVIDIA GPUs; the mathematics is `dynamic`.

The logits of iteration t are prior_ij + u_hat_ij . V_j with V = v_0 + ... + v_(t-1), so none are
kept. Backwards, with gs the gradient by s, from the last iteration to the first:

    gs_j  = gradient of squash at s_j, of the sum of all gV_j of the iterations after it
    gl_ij = c_ij (u_hat_ij . gs_j - sum_k c_ik u_hat_ik . gs_k)
    gV_j  = sum_i gl_ij u_hat_ij
    g u_hat_ij = sum_t c_ij gs_j + gl_ij V_j        dW_ij = sum_b g u_hat_ij u_i^T
                                                    du_i  = sum_j W_ij^T g u_hat_ij

Votes are never in memory: `dynamic_programs` says how, `dynamic_launches` what is left to torch.
For the backward pass the couplings of the iterations after the first are kept, (T - 1) B I J
numbers where the votes are B I J D. Two runs on one machine have the same bits. Squash and bias are
torch's: they are small.

Triton is imported when a layer is routed. Its interpreter, TRITON_INTERPRET=1 before that, routes
on a CPU: exact, and slow.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsweep.errors import ConfigError
from capsweep.model.squash import squash
from capsweep.model.votes import LocalVotes, Routed, Votes

INSTEAD = "set routing.impl=fast or routing.impl=reference"


class Options(NamedTuple):
    """As in `dynamic.reference`; full: whether gradients flow through all iterations."""

    num_iters: int
    with_none: bool
    full: bool


@torch.compiler.disable
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
    """The same as `dynamic.reference`, on a GPU, in at least single precision, also inside autocast.

    Couplings and trace have no gradients. Raises ValueError as the reference does, and ConfigError
    for votes that are not linear, without triton, and on another device than a GPU.
    """
    from capsweep.model.routing.dynamic import GRADIENTS  # which lists this function

    if num_iters < 1:
        raise ValueError(f"routing.num_iters must be >= 1, got {num_iters}")
    if gradient not in GRADIENTS:
        raise ValueError(f"routing.gradient must be one of {', '.join(GRADIENTS)}, got {gradient}")
    if not isinstance(votes, Votes):
        raise ConfigError(f"routing.impl=triton routes linear votes alone (model=capsnet); {INSTEAD}")
    device = votes.pose_BIP.device
    _launches(device)
    types = torch.promote_types(votes.pose_BIP.dtype, votes.weight_IJDP.dtype), torch.float32
    dtype = torch.promote_types(*types)
    options = Options(num_iters, none_of_the_above, gradient == "full")
    with torch.autocast(device.type, enabled=False):
        v_BJD, v_TBJD, first_IJ, coupling_TBIJ = _Routing.apply(
            votes.pose_BIP.to(dtype),
            votes.weight_IJDP.to(dtype),
            None if prior_LJ is None else prior_LJ.to(dtype),
            None if bias_JD is None else bias_JD.to(dtype),
            options,
        )
        couplings = [first_IJ.expand(len(v_BJD), -1, -1), *coupling_TBIJ]
        return Routed(
            v_BJD,
            torch.linalg.vector_norm(v_BJD, dim=-1),
            couplings[-1],
            _trace(couplings, v_TBJD) if with_trace else None,
        )


def _trace(couplings: list[Tensor], v_TBJD: Tensor) -> list[dict[str, Tensor]]:
    return [
        {"coupling": coupling_BIJ[:, None], "pose": v_BJD[:, None]}
        for coupling_BIJ, v_BJD in zip(couplings, v_TBJD, strict=True)
    ]


def _launches(device: torch.device) -> ModuleType:
    """What launches the kernels on `device`. Raises ConfigError where it cannot."""
    try:
        from capsweep.model.routing.kernels import dynamic_launches
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError(
            f"routing.impl=triton needs triton, which is not installed: install it, or {INSTEAD}"
        ) from error
    if device.type != "cuda" and not dynamic_launches.INTERPRETED:
        raise ConfigError(
            f"routing.impl=triton needs a GPU, and these votes are on {device.type}: set "
            f"trainer.accelerator=gpu, or {INSTEAD} (TRITON_INTERPRET=1 in the environment "
            "interprets the kernels on a CPU, for tests)"
        )
    return dynamic_launches


class _Routing(torch.autograd.Function):
    """v of the last iteration, and without gradients: v of all, the first couplings, the others."""

    @staticmethod
    def forward(
        ctx: Any,
        pose_BIP: Tensor,
        weight_IJDP: Tensor,
        prior_IJ: Tensor | None,
        bias_JD: Tensor | None,
        options: Options,
    ) -> tuple[Tensor, ...]:
        weight_IPJD = weight_IJDP.permute(0, 3, 1, 2).contiguous()
        linear = _launches(pose_BIP.device).Linear(pose_BIP.contiguous(), weight_IPJD)
        prior_IJ = None if prior_IJ is None else prior_IJ.contiguous()
        bias = 0 if bias_JD is None else bias_JD
        first_IJ = _first_couplings(weight_IJDP, prior_IJ, options.with_none)
        sums = [linear.first_sums(first_IJ) + bias]
        poses = [squash(sums[0])]
        seen = [poses[0]]
        coupling_TBIJ = pose_BIP.new_empty(options.num_iters - 1, len(pose_BIP), *first_IJ.shape)
        for coupling_BIJ in coupling_TBIJ:
            sum_BJD = linear.sums(seen[-1], prior_IJ, options.with_none, coupling_BIJ)
            sums.append(sum_BJD + bias)
            poses.append(squash(sums[-1]))
            seen.append(seen[-1] + poses[-1])
        saved = [torch.stack(sums), torch.stack(seen)]
        ctx.save_for_backward(linear.pose_BIP, weight_IPJD, first_IJ, coupling_TBIJ, *saved)
        ctx.options = options
        ctx.set_materialize_grads(False)
        v_TBJD = torch.stack(poses)
        ctx.mark_non_differentiable(v_TBJD, first_IJ, coupling_TBIJ)
        return poses[-1], v_TBJD, first_IJ, coupling_TBIJ

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        by_v_BJD = grad_outputs[0]
        if by_v_BJD is None:
            return None, None, None, None, None
        with torch.autocast(by_v_BJD.device.type, enabled=False):
            return *_backward(ctx, by_v_BJD), None


def _backward(ctx: Any, by_v_BJD: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    pose_BIP, weight_IPJD, first_IJ, coupling_TBIJ, sum_TBJD, seen_TBJD = ctx.saved_tensors
    _, _, with_prior, with_bias, _ = ctx.needs_input_grad
    full = ctx.options.full
    linear = _launches(pose_BIP.device).Linear(pose_BIP, weight_IPJD)
    by_prior_IJ, by_seen_BJD = torch.zeros_like(first_IJ), torch.zeros_like(by_v_BJD)
    by_logit_TBIJ = torch.empty_like(coupling_TBIJ)
    by_sum_TBJD = torch.zeros_like(sum_TBJD)
    last = len(sum_TBJD) - 1
    for t in range(last, -1 if full else last - 1, -1):
        by_sum_TBJD[t] = _by_sum(sum_TBJD[t], by_v_BJD)
        if t > 0 and (full or with_prior):
            by_logit_BIJ = by_logit_TBIJ[t - 1]
            by_seen_BJD += linear.back(by_sum_TBJD[t], coupling_TBIJ[t - 1], by_logit_BIJ)
            by_v_BJD = by_seen_BJD  # every v before is part of what was seen
            if with_prior:
                by_prior_IJ += by_logit_BIJ.sum(dim=0)
    parts = []
    if full or last == 0:
        part, by_first_IJ = linear.first_gradients(first_IJ, by_sum_TBJD[0])
        by_prior_IJ += by_first_IJ
        parts.append(part)
    if last > 0:
        since = 1 if full else last  # iterations whose votes have a gradient
        terms = coupling_TBIJ[since - 1 :], by_sum_TBJD[since:]
        by_logit = by_logit_TBIJ if full else None
        parts.append(linear.gradients(*terms, by_logit, seen_TBJD))
    by_pose_BIP = sum(part.pose_BIP for part in parts)
    by_weight_IPJD = sum(part.weight_IPJD for part in parts)
    return (
        by_pose_BIP,
        by_weight_IPJD.permute(0, 2, 3, 1),
        by_prior_IJ if with_prior else None,
        by_sum_TBJD.sum(dim=(0, 1)) if with_bias else None,
    )


def _first_couplings(weight_IJDP: Tensor, prior_IJ: Tensor | None, with_none: bool) -> Tensor:
    """[I, J]."""
    if prior_IJ is None:
        prior_IJ = weight_IJDP.new_zeros(weight_IJDP.shape[:2])
    if not with_none:
        return torch.softmax(prior_IJ, dim=1)
    return torch.softmax(torch.cat([torch.zeros_like(prior_IJ[:, :1]), prior_IJ], dim=1), dim=1)[
        :, 1:
    ]


def _by_sum(sum_BJD: Tensor, by_v_BJD: Tensor) -> Tensor:
    """The gradient of squash."""
    with torch.enable_grad():
        leaf_BJD = sum_BJD.detach().requires_grad_()
        return torch.autograd.grad(squash(leaf_BJD), leaf_BJD, by_v_BJD)[0]
