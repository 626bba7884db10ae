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

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations; i
children at a time; E = J D.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from capsweep.model.capsules import squash, squash_gradient, without_autocast
from capsweep.model.routing.base import check_num_iters
from capsweep.model.votes import NUMBERS_AT_ONCE, Routed, Votes

GRADIENTS = ("full", "last")


@dataclass(frozen=True)
class DynamicOptions:
    """As in `dynamic.reference`. Raises ValueError for what no implementation can do."""

    num_iters: int
    none_of_the_above: bool
    gradient: str

    def __post_init__(self) -> None:
        check_num_iters(self.num_iters)
        if self.gradient not in GRADIENTS:
            known = ", ".join(GRADIENTS)
            raise ValueError(f"routing.gradient must be one of {known}, got {self.gradient}")

    @property
    def is_full(self) -> bool:
        """Whether gradients flow through all iterations."""
        return self.gradient == "full"


@dataclass(frozen=True)
class Iteration:
    """What the backward pass needs of one: V_JDB it began with, its couplings, [J, I, B] or, in the
    first, [J, I, 1], and s_JDB.
    """

    seen_JDB: Tensor | None
    coupling_JIB: Tensor
    s_JDB: Tensor


class LinearVotes:
    """The two products with the votes of the children of a batch.

    Their intermediate results take turns in one buffer: fresh memory for each costs as much as the
    product.
    """

    def __init__(self, pose_BIP: Tensor, weight_IJDP: Tensor) -> None:
        self.pose_IPB = pose_BIP.permute(1, 2, 0).contiguous()
        self.weight_JDIP = weight_IJDP.permute(1, 2, 0, 3).contiguous()
        self.buffer = pose_BIP.new_empty(0)

    def split_children(self, pose: int) -> Iterator[slice]:
        """Children whose numbers, so many a pose, parent and image, stay in the cache."""
        children, _, images = self.pose_IPB.shape
        numbers = max(1, len(self.weight_JDIP) * pose * images)
        step = max(1, NUMBERS_AT_ONCE[self.pose_IPB.is_cuda] // numbers)
        if len(self.buffer) < min(step, children) * numbers:
            self.buffer = self.buffer.new_empty(min(step, children) * numbers)
        return (slice(start, start + step) for start in range(0, children, step))

    def borrow_buffer(self, *shape: int) -> Tensor:
        """Some of the buffer, for what is read before the buffer is used again."""
        return self.buffer[: math.prod(shape)].view(shape)

    def compute_agreement(self, part: slice, parent_JDB: Tensor) -> Tensor:
        """u_hat_ij . parent_j of some children, [J, i, B]."""
        weight_JDE, pose_iPB = self.weight_JDIP[:, :, part].flatten(2), self.pose_IPB[part]
        seen_JiPB = self.borrow_buffer(len(weight_JDE), *pose_iPB.shape)
        torch.bmm(weight_JDE.transpose(1, 2), parent_JDB, out=seen_JiPB.flatten(1, 2))  # E = i P
        return seen_JiPB.mul_(pose_iPB).sum(dim=2)

    def add_weighted(self, sum_JDB: Tensor, part: slice, weight_JiB: Tensor) -> None:
        """Add sum_i weight_ij u_hat_ij over some children."""
        weight_JDE, pose_iPB = self.weight_JDIP[:, :, part].flatten(2), self.pose_IPB[part]
        weighted_JiPB = self.borrow_buffer(len(weight_JDE), *pose_iPB.shape)
        torch.mul(weight_JiB[:, :, None], pose_iPB, out=weighted_JiPB)
        sum_JDB.baddbmm_(weight_JDE, weighted_JiPB.flatten(1, 2))

    def first_sum(self, coupling_JI1: Tensor) -> Tensor:
        """sum_i c_ij u_hat_ij [J, D, B], the couplings those of every image."""
        shared_EX = (self.weight_JDIP * coupling_JI1[:, None]).flatten(2).flatten(0, 1)  # X = I P
        return (shared_EX @ self.pose_IPB.flatten(0, 1)).unflatten(0, self.weight_JDIP.shape[:2])


def softmax_over_parents(logit_JIB: Tensor, none_of_the_above: bool) -> Tensor:
    """Each child's shares among the parents, of logits [J, I, B] or [J, I]."""
    if not none_of_the_above:
        return torch.softmax(logit_JIB, dim=0)
    with_none = torch.cat([torch.zeros_like(logit_JIB[:1]), logit_JIB])
    return torch.softmax(with_none, dim=0)[1:]


def make_trace_step(
    pose_BIP: Tensor, weight_IJDP: Tensor, coupling_BIJ: Tensor, v_BJD: Tensor
) -> dict[str, Tensor]:
    """What `dynamic.reference` says of an iteration, without gradients."""
    with torch.no_grad():
        linear, v_JDB = LinearVotes(pose_BIP, weight_IJDP), v_BJD.permute(1, 2, 0).contiguous()
        parts = linear.split_children(pose_BIP.shape[2])
        agreement_JIB = torch.cat([linear.compute_agreement(part, v_JDB) for part in parts], dim=1)
        agreement_BIJ = agreement_JIB.permute(2, 1, 0)
    one = {"coupling": coupling_BIJ, "pose": v_BJD, "agreement": agreement_BIJ}
    return {key: tensor.detach()[:, None] for key, tensor in one.items()}


def run_iterations(
    linear: LinearVotes, prior_JI1: Tensor, bias_JD: Tensor | None, options: DynamicOptions
) -> list[Iteration]:
    """All iterations; of a single one autograd knows the gradient."""
    bias_JD1 = prior_JI1.new_zeros(()) if bias_JD is None else bias_JD[..., None]
    coupling_JI1 = softmax_over_parents(prior_JI1, options.none_of_the_above)
    seen_JDB, s_JDB = None, linear.first_sum(coupling_JI1) + bias_JD1
    done = [Iteration(seen_JDB, coupling_JI1, s_JDB)]
    for _ in range(options.num_iters - 1):
        v_JDB = squash(s_JDB, dim=1)
        seen_JDB = v_JDB if seen_JDB is None else seen_JDB + v_JDB
        coupling_JIB, s_JDB = _run_iteration(linear, prior_JI1, seen_JDB, options)
        s_JDB += bias_JD1
        done.append(Iteration(seen_JDB, coupling_JIB, s_JDB))
    return done


def _run_iteration(
    linear: LinearVotes, prior_JI1: Tensor, seen_JDB: Tensor, options: DynamicOptions
) -> tuple[Tensor, Tensor]:
    """Couplings and the weighted sums of votes."""
    coupling_JIB = prior_JI1.new_empty(*prior_JI1.shape[:2], seen_JDB.shape[2])
    s_JDB = torch.zeros_like(seen_JDB)
    for part in linear.split_children(linear.pose_IPB.shape[1]):
        logit_JiB = linear.compute_agreement(part, seen_JDB).add_(prior_JI1[:, part])
        coupling_JiB = softmax_over_parents(logit_JiB, options.none_of_the_above)
        linear.add_weighted(s_JDB, part, coupling_JiB)
        coupling_JIB[:, part] = coupling_JiB
    return coupling_JIB, s_JDB


def route_linear(
    votes: Votes,
    prior_IJ: Tensor | None,
    bias_JD: Tensor | None,
    options: DynamicOptions,
    with_trace: bool,
) -> Routed:
    """Route, as `dynamic.reference` says; couplings and the trace have no gradients."""
    weight_IJDP = votes.weight_IJDP
    pose_BIP = votes.pose_BIP.to(weight_IJDP.dtype)
    prior_JI1 = weight_IJDP.new_zeros(weight_IJDP.shape[1], len(weight_IJDP), 1)
    if prior_IJ is not None:
        prior_JI1 = prior_IJ.T.contiguous()[..., None]
    if options.num_iters == 1:
        linear = LinearVotes(pose_BIP, weight_IJDP)
        done = run_iterations(linear, prior_JI1, bias_JD, options)
        v_BJD = squash(done[0].s_JDB, dim=1).permute(2, 0, 1).contiguous()
    else:
        v_BJD, *flat = _FastFunction.apply(pose_BIP, weight_IJDP, prior_JI1, bias_JD, options)
        done = [Iteration(None, *pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
    trace = [_trace_iteration(pose_BIP, weight_IJDP, one) for one in done] if with_trace else None
    return Routed(
        pose_BJD=v_BJD,
        act_BJ=torch.linalg.vector_norm(v_BJD, dim=-1),
        coupling_BIJ=_couplings_of_images(done[-1], len(pose_BIP)),
        trace=trace,
    )


def _couplings_of_images(iteration: Iteration, num_images: int) -> Tensor:
    """Its couplings [B, I, J]."""
    return iteration.coupling_JIB.detach().permute(2, 1, 0).expand(num_images, -1, -1)


def _trace_iteration(
    pose_BIP: Tensor, weight_IJDP: Tensor, iteration: Iteration
) -> dict[str, Tensor]:
    v_BJD = squash(iteration.s_JDB.detach(), dim=1).permute(2, 0, 1)
    return make_trace_step(
        pose_BIP, weight_IJDP, _couplings_of_images(iteration, len(pose_BIP)), v_BJD
    )


class _FastFunction(torch.autograd.Function):
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
        options: DynamicOptions,
    ) -> tuple[Tensor, ...]:
        done = run_iterations(LinearVotes(pose_BIP, weight_IJDP), prior_JI1, bias_JD, options)
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
            return _differentiate_routing(ctx, by_v_BJD)


def _differentiate_routing(ctx: Any, v_BJD: Tensor) -> tuple[Tensor | None, ...]:
    """By the inputs of `_FastFunction`."""
    pose_BIP, weight_IJDP, *flat = ctx.saved_tensors
    _, _, with_prior, with_bias, _ = ctx.needs_input_grad
    backward = BackwardPass(
        LinearVotes(pose_BIP, weight_IJDP), _restore_iterations(flat), ctx.options
    )
    backward.run(v_BJD.permute(1, 2, 0).contiguous(), with_prior)
    by_weight_IJDP, by_pose_BIP = backward.differentiate_inputs(weight_IJDP)
    by_prior_JI1 = backward.prior_JI[..., None] if with_prior else None
    by_bias_JD = backward.bias_JD if with_bias else None
    return by_pose_BIP, by_weight_IJDP, by_prior_JI1, by_bias_JD, None


def _restore_iterations(flat: list[Tensor]) -> list[Iteration]:
    """V is the sum of all v before."""
    done: list[Iteration] = []
    seen_JDB = None
    for coupling_JIB, s_JDB in zip(flat[::2], flat[1::2], strict=True):
        done.append(Iteration(seen_JDB, coupling_JIB, s_JDB))
        v_JDB = squash(s_JDB, dim=1)
        seen_JDB = v_JDB if seen_JDB is None else seen_JDB + v_JDB
    return done


@dataclass
class RankOneTerm:
    """A rank-one part of the votes' gradient: weight_ij vector_j."""

    weight_JIB: Tensor
    vector_JDB: Tensor


class BackwardPass:
    """The gradients of one routing."""

    def __init__(self, linear: LinearVotes, done: list[Iteration], options: DynamicOptions) -> None:
        self.linear, self.done, self.options = linear, done, options
        self.terms: list[RankOneTerm] = []
        self.bias_JD = torch.zeros_like(done[0].s_JDB[:, :, 0])
        self.prior_JI = torch.zeros_like(done[0].coupling_JIB[:, :, 0])

    def run(self, v_JDB: Tensor, with_prior: bool) -> None:
        """Go back from the gradient by the last v."""
        seen_JDB = torch.zeros_like(v_JDB)
        for iteration in reversed(self.done):
            s_JDB = squash_gradient(iteration.s_JDB, v_JDB, dim=1)
            self.bias_JD += s_JDB.sum(dim=2)
            self.terms.append(RankOneTerm(iteration.coupling_JIB, s_JDB))
            passes_on = self.options.is_full and iteration.seen_JDB is not None
            if with_prior or passes_on:
                logit_JIB = self._differentiate_couplings(iteration, s_JDB, seen_JDB)
                if with_prior:
                    self.prior_JI += logit_JIB.sum(dim=2)
                if passes_on:
                    assert iteration.seen_JDB is not None
                    self.terms.append(RankOneTerm(logit_JIB, iteration.seen_JDB))
            if not self.options.is_full:
                return
            v_JDB = seen_JDB

    def _differentiate_couplings(
        self, iteration: Iteration, s_JDB: Tensor, seen_JDB: Tensor
    ) -> Tensor:
        """The gradient by the logits; that by V is added to `seen_JDB`: all v before have it."""
        coupling_JIB = iteration.coupling_JIB
        logit_JIB = s_JDB.new_empty(*coupling_JIB.shape[:2], s_JDB.shape[2])
        for part in self.linear.split_children(self.linear.pose_IPB.shape[1]):
            coupling_JiB = coupling_JIB[:, part]
            weighted_JiB = self.linear.compute_agreement(part, s_JDB).mul_(coupling_JiB)
            logit_JiB = weighted_JiB - coupling_JiB * weighted_JiB.sum(dim=0)
            self.linear.add_weighted(seen_JDB, part, logit_JiB)
            logit_JIB[:, part] = logit_JiB
        return logit_JIB

    def differentiate_inputs(self, weight_IJDP: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients [I, J, D, P] and [B, I, P]."""
        pose_IPB = self.linear.pose_IPB
        weight_IEP = weight_IJDP.flatten(1, 2)
        by_weight_IEP, by_pose_IPB = torch.empty_like(weight_IEP), torch.empty_like(pose_IPB)
        for part in self.linear.split_children(weight_IJDP.shape[2]):
            votes_iEB = self._sum_terms(part).flatten(1, 2)
            torch.bmm(votes_iEB, pose_IPB[part].transpose(1, 2), out=by_weight_IEP[part])
            torch.bmm(weight_IEP[part].transpose(1, 2), votes_iEB, out=by_pose_IPB[part])
        return by_weight_IEP.view_as(weight_IJDP), by_pose_IPB.permute(2, 0, 1)

    def _sum_terms(self, part: slice) -> Tensor:
        """[i, J, D, B]."""
        first, *others = self.terms
        weights = [term.weight_JIB[:, part].transpose(0, 1)[:, :, None] for term in self.terms]
        votes_iJDB = self.linear.borrow_buffer(len(weights[0]), *first.vector_JDB.shape)
        torch.mul(weights[0], first.vector_JDB, out=votes_iJDB)
        for weight_iJ1B, term in zip(weights[1:], others, strict=True):
            votes_iJDB.addcmul_(weight_iJ1B, term.vector_JDB)
        return votes_iJDB
