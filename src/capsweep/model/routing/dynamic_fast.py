"""Dynamic routing of linear votes without forming the votes.

The mathematics is in `dynamic`. The logits of iteration t are b_ij = prior_ij + u_hat_ij . V_j with
V = v_0 + ... + v_(t-1), so no logits are kept. In the backward pass, let gs_j be the gradient of
the loss with respect to s_j. The gradients with respect to c_ij, b_ij and V_j are

    gc_ij = u_hat_ij . gs_j
    gl_ij = c_ij (gc_ij - sum_k c_ik gc_ik)
    gV_j  = sum_i gl_ij u_hat_ij

The gradient with respect to a vote is a sum over the iterations:

    g u_hat_ij = sum_t (c_ij gs_j + gl_ij V_j)

For one parent and one image, each term of this sum is a matrix [I, D] of rank two. The forward pass
keeps T B J (2 D + I) numbers for the backward pass. The votes would be B I J D numbers.

Shape letters: B batch, I children, i children of one part, J parents, P child pose, D parent pose,
T iterations; E = J D. `by_x` is the gradient of the loss with respect to x. Tensors without shape
letters are [J, D, B] or [J, I, B].
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsweep.model.capsules import squash, squash_gradient
from capsweep.model.routing import Routed, softmax_over_parents
from capsweep.model.votes import NUMBERS_AT_ONCE, Votes

# A pair (weight_ij, vector_j). The gradient with respect to u_hat_ij is the sum of the products
# weight_ij vector_j over all terms.
Term = tuple[Tensor, Tensor]


class Iteration(NamedTuple):
    """The tensors that the backward pass needs from one iteration.

    Attributes:
        pose_sum: V, the sum of the poses of all earlier iterations, [J, D, B]. None in the first
            iteration.
        coupling: Couplings, [J, I, B]. In the first iteration they are [J, I, 1], the same for all
            images.
        sums: s, the weighted sum of the votes plus the bias, [J, D, B].
    """

    pose_sum: Tensor | None
    coupling: Tensor
    sums: Tensor


class Options(NamedTuple):
    """The options of dynamic routing with the softmax.

    Attributes:
        num_iters: Number of iterations T, at least 1.
        none_of_the_above: Whether a share of each child may go to no parent.
        is_full: Whether gradients flow through all iterations, not only through the last.
    """

    num_iters: int
    none_of_the_above: bool
    is_full: bool


class LinearVotes:
    """The linear votes of a batch, stored as poses and weights.

    Routing needs two products, which can be computed without the votes:

        u_hat_ij . V_j = u_i . (W_ij^T V_j)
        sum_i c_ij u_hat_ij = sum_i W_ij (c_ij u_i)

    The right-hand sides are matrix products over all images, for as many children at a time as fit
    into the cache. Intermediate results share one buffer, because allocating memory for each of
    them takes as long as the product. Tensors without shape letters are [J, D, B] or [J, I, B].
    Couplings and logits that all images share are [J, I, 1].

    Args:
        pose_BIP: Poses of the children.
        weight_IJDP: Vote weights.
    """

    def __init__(self, pose_BIP: Tensor, weight_IJDP: Tensor) -> None:
        self.pose_IPB = pose_BIP.permute(1, 2, 0).contiguous()
        self.weight_JDIP = weight_IJDP.permute(1, 2, 0, 3).contiguous()
        self.weight_IJDP, self.buffer = weight_IJDP, pose_BIP.new_empty(0)

    def sum_first(self, coupling: Tensor) -> Tensor:
        """Compute sum_i c_ij u_hat_ij [J, D, B] from couplings [J, I, 1], which all images share.

        Autograd can differentiate this operation.
        """
        shared_EX = (self.weight_JDIP * coupling[:, None]).flatten(2).flatten(0, 1)
        return (shared_EX @ self.pose_IPB.flatten(0, 1)).unflatten(0, self.weight_JDIP.shape[:2])

    def sum_votes(
        self, pose_sum: Tensor, prior: Tensor, none_of_the_above: bool
    ) -> tuple[Tensor, Tensor]:
        """Compute couplings from the pose sum V, then the sums of votes times these couplings.

        Args:
            pose_sum: Sum V of the poses of all earlier iterations, [J, D, B].
            prior: Logits before the first iteration, [J, I, 1].
            none_of_the_above: Whether a share of each child may go to no parent.

        Returns:
            The couplings [J, I, B] and the sums [J, D, B] without the bias.
        """
        coupling_JIB = prior.new_empty(*prior.shape[:2], pose_sum.shape[2])
        sums_JDB = torch.zeros_like(pose_sum)
        for part in self._split_children(self.pose_IPB.shape[1]):
            logit_JiB = self._compute_agreement(part, pose_sum).add_(prior[:, part])
            coupling_JiB = softmax_over_parents(logit_JiB, none_of_the_above, dim=0)
            self._add_weighted(sums_JDB, part, coupling_JiB)
            coupling_JIB[:, part] = coupling_JiB
        return coupling_JIB, sums_JDB

    def differentiate_couplings(
        self, coupling: Tensor, by_sums: Tensor, by_pose_sum: Tensor
    ) -> Tensor:
        """Compute the gradient with respect to the logits of one iteration.

        Args:
            coupling: Couplings of the iteration.
            by_sums: Gradient with respect to the sums of the iteration.
            by_pose_sum: Gradients with respect to the pose sums V, added up over the later
                iterations. The method adds the gradient of this iteration in place.

        Returns:
            Gradient with respect to the logits, [J, I, B].
        """
        by_logit_JIB = by_sums.new_empty(*coupling.shape[:2], by_sums.shape[2])
        for part in self._split_children(self.pose_IPB.shape[1]):
            coupling_JiB = coupling[:, part]
            weighted_JiB = self._compute_agreement(part, by_sums).mul_(coupling_JiB)
            by_logit_JiB = weighted_JiB - coupling_JiB * weighted_JiB.sum(dim=0)
            self._add_weighted(by_pose_sum, part, by_logit_JiB)
            by_logit_JIB[:, part] = by_logit_JiB
        return by_logit_JIB

    def differentiate_inputs(self, terms: Sequence[Term]) -> tuple[Tensor, Tensor]:
        """Compute the gradients with respect to the poses [B, I, P] and the weights [I, J, D, P].

        The gradient with respect to the votes is formed for a few children at a time.

        Args:
            terms: Pairs (weight_ij, vector_j). The gradient with respect to u_hat_ij is the sum of
                weight_ij vector_j over all pairs.
        """
        weight_IEP = self.weight_IJDP.flatten(1, 2)
        by_weight_IEP, by_pose_IPB = torch.empty_like(weight_IEP), torch.empty_like(self.pose_IPB)
        for part in self._split_children(self.weight_IJDP.shape[2]):
            by_votes_iEB = self._sum_terms(part, terms).flatten(1, 2)
            torch.bmm(by_votes_iEB, self.pose_IPB[part].transpose(1, 2), out=by_weight_IEP[part])
            torch.bmm(weight_IEP[part].transpose(1, 2), by_votes_iEB, out=by_pose_IPB[part])
        return by_pose_IPB.permute(2, 0, 1), by_weight_IEP.view_as(self.weight_IJDP)

    def _split_children(self, pose: int) -> Iterator[slice]:
        """Split the children into parts, so that the intermediate results of a part fit the cache.

        The intermediate results have `pose` numbers per child, parent and image. The buffer is
        enlarged if it is too small for the intermediate results of a part.
        """
        children, _, images = self.pose_IPB.shape
        numbers = max(1, len(self.weight_JDIP) * pose * images)
        step = max(1, NUMBERS_AT_ONCE[self.pose_IPB.is_cuda] // numbers)
        if len(self.buffer) < min(step, children) * numbers:
            self.buffer = self.buffer.new_empty(min(step, children) * numbers)
        return (slice(start, start + step) for start in range(0, children, step))

    def _borrow_buffer(self, *shape: int) -> Tensor:
        """Return a tensor in the buffer; the next call returns the same memory."""
        return self.buffer[: math.prod(shape)].view(shape)

    def _compute_agreement(self, part: slice, parent_JDB: Tensor) -> Tensor:
        """Compute the products u_hat_ij . parent_j [J, i, B] for the children of one part."""
        weight_JDE, pose_iPB = self.weight_JDIP[:, :, part].flatten(2), self.pose_IPB[part]
        seen_JiPB = self._borrow_buffer(len(weight_JDE), *pose_iPB.shape)
        torch.bmm(weight_JDE.transpose(1, 2), parent_JDB, out=seen_JiPB.flatten(1, 2))  # E = i P
        return seen_JiPB.mul_(pose_iPB).sum(dim=2)

    def _add_weighted(self, sums_JDB: Tensor, part: slice, weight_JiB: Tensor) -> None:
        """Add sum_i weight_ij u_hat_ij over the children of one part to `sums_JDB`, in place."""
        weight_JDE, pose_iPB = self.weight_JDIP[:, :, part].flatten(2), self.pose_IPB[part]
        weighted_JiPB = self._borrow_buffer(len(weight_JDE), *pose_iPB.shape)
        torch.mul(weight_JiB[:, :, None], pose_iPB, out=weighted_JiPB)
        sums_JDB.baddbmm_(weight_JDE, weighted_JiPB.flatten(1, 2))

    def _sum_terms(self, part: slice, terms: Sequence[Term]) -> Tensor:
        """Compute the gradient [i, J, D, B] with respect to the votes of the children of a part."""
        weights = [weight[:, part].transpose(0, 1)[:, :, None] for weight, _ in terms]
        by_votes_iJDB = self._borrow_buffer(len(weights[0]), *terms[0][1].shape)
        torch.mul(weights[0], terms[0][1], out=by_votes_iJDB)
        for weight_iJ1B, (_, vector) in zip(weights[1:], terms[1:], strict=True):
            by_votes_iJDB.addcmul_(weight_iJ1B, vector)
        return by_votes_iJDB


def list_inputs(
    votes: Votes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    *,
    prior_LJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Options]:
    """List the inputs of `route_linear`, from the arguments of `dynamic.reference`.

    Args:
        votes: Linear votes.
        num_iters: Number of iterations T, at least 1.
        bias_JD: Bias added to the sum of the votes in each iteration. None: no bias.
        prior_LJ: Routing logits before the first iteration. None: 0.
        none_of_the_above: Whether a share of each child may go to no parent.
        gradient: "full": gradients flow through all iterations. "last": gradients flow only through
            the last iteration.
    """
    weight_IJDP = votes.weight_IJDP
    if prior_LJ is None:
        prior_LJ = weight_IJDP.new_zeros(weight_IJDP.shape[:2])
    if bias_JD is None:
        bias_JD = weight_IJDP.new_zeros(weight_IJDP.shape[1:3])
    options = Options(num_iters, none_of_the_above, gradient == "full")
    return votes.pose_BIP, weight_IJDP, prior_LJ, bias_JD, options


def route_linear(
    pose_BIP: Tensor, weight_IJDP: Tensor, prior_IJ: Tensor, bias_JD: Tensor, options: Options
) -> Routed:
    """Route linear votes as `dynamic.reference` does, without forming the votes.

    The couplings in the result carry no gradient.

    Args:
        pose_BIP: Poses of the children.
        weight_IJDP: Vote weights.
        prior_IJ: Routing logits before the first iteration.
        bias_JD: Bias added to the sum of the votes in each iteration.
        options: Options of the routing.
    """
    prior, bias = prior_IJ.T.contiguous()[..., None], bias_JD[..., None]
    if options.num_iters == 1:  # autograd can differentiate a single iteration
        linear = LinearVotes(pose_BIP, weight_IJDP)
        _, coupling, sums = run_iterations(linear, prior, bias, options)[0]
        v = squash(sums, dim=1)
    else:
        v, coupling = _LinearRouting.apply(pose_BIP, weight_IJDP, prior, bias, options)
    v_BJD, coupling_BIJ = v.permute(2, 0, 1).contiguous(), coupling.detach().permute(2, 1, 0)
    act_BJ = torch.linalg.vector_norm(v_BJD, dim=-1)
    return Routed(v_BJD, act_BJ, coupling_BIJ.expand(len(v_BJD), -1, -1))


def run_iterations(
    linear: LinearVotes, prior: Tensor, bias: Tensor, options: Options
) -> list[Iteration]:
    """Run all routing iterations and return the tensors of each iteration.

    Autograd can differentiate only the first iteration.
    """
    coupling = softmax_over_parents(prior, options.none_of_the_above, dim=0)
    iterations = [Iteration(None, coupling, linear.sum_first(coupling) + bias)]
    for _ in range(options.num_iters - 1):
        v = squash(iterations[-1].sums, dim=1)
        pose_sum = v if iterations[-1].pose_sum is None else iterations[-1].pose_sum + v
        coupling, sums = linear.sum_votes(pose_sum, prior, options.none_of_the_above)
        iterations.append(Iteration(pose_sum, coupling, sums.add_(bias)))
    return iterations


class _LinearRouting(torch.autograd.Function):
    """An autograd function that returns the poses of the parents and the last couplings.

    The poses are differentiable with respect to child poses, weights, prior and bias; the couplings
    are not differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any,
        pose_BIP: Tensor,
        weight_IJDP: Tensor,
        prior: Tensor,
        bias: Tensor,
        options: Options,
    ) -> tuple[Tensor, Tensor]:
        linear = LinearVotes(pose_BIP, weight_IJDP)
        iterations = run_iterations(linear, prior, bias, options)
        flat = [tensor for iteration in iterations for tensor in iteration]
        ctx.save_for_backward(pose_BIP, weight_IJDP, *flat)
        ctx.is_full, ctx.bias_shape = options.is_full, bias.shape
        ctx.mark_non_differentiable(iterations[-1].coupling)
        ctx.set_materialize_grads(False)
        return squash(iterations[-1].sums, dim=1), iterations[-1].coupling

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_v: Tensor | None, _: None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the gradients with respect to the inputs; couplings have no gradient.

        The loop runs over the iterations, from the last to the first.
        """
        if by_v is None:
            return (None,) * 5
        by_v = by_v.contiguous()
        pose_BIP, weight_IJDP, *flat = ctx.saved_tensors
        iterations = [Iteration(*flat[start : start + 3]) for start in range(0, len(flat), 3)]
        linear, with_prior = LinearVotes(pose_BIP, weight_IJDP), ctx.needs_input_grad[2]
        by_prior, by_bias = torch.zeros_like(iterations[0].coupling), by_v.new_zeros(ctx.bias_shape)
        by_pose_sum, terms = torch.zeros_like(by_v), list[Term]()
        for pose_sum, coupling, sums in reversed(iterations):
            by_sums = squash_gradient(sums, by_v, dim=1)
            by_bias += by_sums.sum_to_size(by_bias.shape)
            terms.append((coupling, by_sums))
            if with_prior or (ctx.is_full and pose_sum is not None):
                by_logit = linear.differentiate_couplings(coupling, by_sums, by_pose_sum)
                if with_prior:
                    by_prior += by_logit.sum_to_size(by_prior.shape)
                if ctx.is_full and pose_sum is not None:
                    terms.append((by_logit, pose_sum))
            if not ctx.is_full:
                break
            by_v = by_pose_sum
        return *linear.differentiate_inputs(terms), by_prior, by_bias, None
