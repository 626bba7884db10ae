"""Weighted sums of votes and products of votes with poses, as matrix products.

A routing uses the votes U_l in two products: weighted sums over the children, sum_l s_l U_l, and
scalar products with poses, p . U_l. Both are matrix products. All tensors except the votes are
smaller by a factor D. `FormedVotes` computes the products for reference implementations. A fast
implementation, made by `make_fast`, calls the reference with `VoteProducts`. In the backward pass,
the gradient with respect to U is a sum of outer products over all iterations. This sum is one
matrix product too. Autograd differentiates the operations on the smaller tensors.

Gaussians are computed from moments of the votes V. Let U = V - c with a constant c. All iterations
use the same moments Q = [U, U^2]; the products above are computed with Q instead of U:

    with shares s:        n = sum_l s_l;  [m1, m2] = sum_l s_l Q_l;  d = m1 - (1 - n) c
                          mu = c + d;   var = m2 - 2 d m1 + n d^2 + floor
    with precision p:     sum_d p_d (V_ld - mu_d)^2 = [-2 p d, p] Q_l + sum_d p_d d_d^2

The variance and the distances are differences of larger numbers. c is the plain mean of the votes,
so the rounding errors are relative to the squared spread of all votes around their mean. They were
measured in single precision, for 160 votes of 16 numbers with a spread of 10. 40 of these votes
differ by only 0.01 and form a Gaussian. The error of its variance is at most 3e-6 (the floor of EM
is 5e-4). The error of a squared distance is at most 0.11 (7 %). In double precision the errors do
not matter. TF32 rounds 8,000 times as coarsely as float32, so this module switches TF32 off.

Shape letters: B batch, M parent positions, J parent types, D parent pose, L children below a
position; E parents in the batch (E = B M J); X numbers of U (D) or of Q (2 D). `by_x` is the
gradient of the loss with respect to x.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsweep.model.routing import Routed, join_routed, softmax_over_parents
from capsweep.model.votes import LocalVotes, split_images


class FormedVotes:
    """The formed votes of a layer, with the operations that reference implementations need.

    Args:
        votes: Votes of the children.

    Attributes:
        votes_BMJLD: The votes.
        zero_BMJL: Zeros. As logits, they give equal couplings.
    """

    def __init__(self, votes: LocalVotes) -> None:
        self.votes = votes
        self.votes_BMJLD = votes.form_local().transpose(2, 3).contiguous()
        self.zero_BMJL = _make_zeros(self.votes_BMJLD[..., 0])

    def local_activation(self) -> Tensor:
        """Return the activations [B, M, L] of the children; raise ValueError if there are none."""
        return self.votes.local_activation()

    def sum_votes(self, share_BMJL: Tensor) -> Tensor:
        """Compute the weighted sums of the votes over the children, sum_l s_l V_l [B, M, J, D]."""
        return torch.matmul(share_BMJL[..., None, :], self.votes_BMJLD).squeeze(3)

    def compare_votes(self, pose_BMJD: Tensor) -> Tensor:
        """Compute the scalar products of poses and votes, p . V_l [B, M, J, L]."""
        return torch.matmul(self.votes_BMJLD, pose_BMJD[..., None]).squeeze(-1)

    def fit_gaussians(self, share_BMJL: Tensor, floor: float) -> tuple[Tensor, Tensor]:
        """Compute the mean and the variance of weighted votes, each [B, M, J, D].

        Args:
            share_BMJL: Weights of the votes, with sum 1 over the children.
            floor: Number added to every variance.
        """
        mean_BMJD = self.sum_votes(share_BMJL)
        squared_BMJLD = (self.votes_BMJLD - mean_BMJD[..., None, :]).square()
        return mean_BMJD, torch.matmul(share_BMJL[..., None, :], squared_BMJLD).squeeze(3) + floor

    def compute_distances(self, mean_BMJD: Tensor, variance_BMJD: Tensor) -> Tensor:
        """Compute sum_d (V_ld - mean_d)^2 / variance_d [B, M, J, L] for each vote V_l."""
        squared_BMJLD = (self.votes_BMJLD - mean_BMJD[..., None, :]).square()
        return torch.matmul(squared_BMJLD, (1 / variance_BMJD)[..., None]).squeeze(-1)

    def compute_log_fit(
        self, mean_BMJD: Tensor, variance_BMJD: Tensor, log_activation_BMJ: Tensor
    ) -> Tensor:
        """Compute log a_j + log p_j(V_ij) [B, M, J, L], where p_j is the Gaussian of parent j.

        Args:
            mean_BMJD: Means of the parents.
            variance_BMJD: Variances of the parents.
            log_activation_BMJ: Logarithms of the activations a_j.
        """
        scaled_BMJL = self.compute_distances(mean_BMJD, variance_BMJD)
        numbers = variance_BMJD.shape[3]
        volume_BMJ = variance_BMJD.log().sum(dim=3) + numbers * math.log(2 * math.pi)
        return (log_activation_BMJ - 0.5 * volume_BMJ)[..., None] - 0.5 * scaled_BMJL

    def divide_children(
        self, logit_BMJL: Tensor, norm: str = "all", none_of_the_above: bool = False
    ) -> Tensor:
        """Compute the shares [B, M, J, L] of each child among its parents, by a softmax.

        Args:
            logit_BMJL: Routing logits.
            norm: The set of parents of one softmax. "all": all types at all positions above the
                child. "types": all types at one position. "positions": one type at all positions
                above the child.
            none_of_the_above: Whether a share of each child may go to no parent. If so, the softmax
                has one more logit, 0, for this share.
        """
        # If each position has its own softmax, the axes can keep their order.
        if logit_BMJL.shape[1] == 1 or norm == "types":
            return softmax_over_parents(logit_BMJL, none_of_the_above, dim=2)
        return self.votes.divide_children(logit_BMJL.mT, norm, none_of_the_above).mT

    def apply_given(self, coupling_BMJL: Tensor) -> Tensor:
        """Return the couplings given with the votes, or `coupling_BMJL` if none are given."""
        given_BMLJ = self.votes.given_BMLJ
        return coupling_BMJL if given_BMLJ is None else given_BMLJ.mT


def _make_zeros(sample_BMJL: Tensor) -> Tensor:
    """Make zeros [B, M, J, L] with the axis J contiguous in memory."""
    return torch.zeros_like(sample_BMJL.mT, memory_format=torch.contiguous_format).mT


class VoteProducts(FormedVotes):
    """The votes U of some images, with a record of all products that routing computed from U.

    Args:
        votes_BMJDL: Votes U with the children as the last axis.

    Attributes:
        constants: Other tensors that the routing reads, such as activations. They may need a
            gradient.
    """

    constants: Sequence[Tensor] = ()

    @staticmethod
    def read_constants(votes: LocalVotes, votes_BMJDL: Tensor) -> list[Tensor]:
        """Return the tensors that the routing reads besides the votes; this class has none."""
        return []

    def __init__(self, votes_BMJDL: Tensor) -> None:
        self.zero_BMJL = _make_zeros(votes_BMJDL[..., 0, :])
        self.parents = votes_BMJDL.shape[:3]
        self.factor_EXL = votes_BMJDL.flatten(0, 2)
        self.products: list[Tensor] = []
        self.factors: list[tuple[Tensor, Tensor]] = []

    def sum_votes(self, share_BMJL: Tensor) -> Tensor:
        """Compute the weighted sums over the children, sum_l s_l U_l [B, M, J, X]."""
        share_EL = share_BMJL.flatten(0, 2)
        sum_EX = torch.bmm(share_EL[:, None], self.factor_EXL.transpose(1, 2))[:, 0]
        self._record(sum_EX, sum_EX, share_EL)
        return sum_EX.unflatten(0, self.parents)

    def compare_votes(self, pose_BMJD: Tensor) -> Tensor:
        """Compute the scalar products p . U_l [B, M, J, L] of the votes and the poses p."""
        pose_EX = pose_BMJD.flatten(0, 2)
        product_EL = torch.bmm(pose_EX[:, None], self.factor_EXL)[:, 0]
        self._record(product_EL, pose_EX, product_EL)
        return product_EL.unflatten(0, self.parents)

    def _record(self, product: Tensor, left_EX: Tensor, right_EL: Tensor) -> None:
        """Record a product for the backward pass.

        In the backward pass, the gradient of U is a sum of outer products of two factors each. One
        factor is the gradient of `product`; until it is known, `product` is stored in its place.
        """
        if torch.is_grad_enabled():
            # U is a constant here. If the other factor is constant too, the product becomes a leaf.
            self.products.append(product.requires_grad_())
            self.factors.append((left_EX, right_EL))

    def differentiate_votes(self, by_products: Sequence[Tensor | None]) -> Tensor | None:
        """Compute the gradient [B, M, J, D, L] with respect to the votes.

        Args:
            by_products: Gradient with respect to each recorded product. None: no gradient.

        Returns:
            The gradient, or None if no product has a gradient.
        """
        pairs: list[tuple[Tensor, Tensor]] = []
        for product, by, (left_EX, right_EL) in zip(
            self.products, by_products, self.factors, strict=True
        ):
            if by is not None:
                pairs.append((by, right_EL) if product is left_EX else (left_EX, by))
        if not pairs:  # no output depends on the products
            return None
        left_EXT = torch.stack([left for left, _ in pairs], dim=2)
        right_ETL = torch.stack([right for _, right in pairs], dim=1)
        by_votes_EDL = self._sum_gradients(left_EXT, right_ETL)
        # The backward pass of the votes reads this gradient child by child.
        by_votes_LF = by_votes_EDL.flatten(0, 1).T.contiguous()  # F = E D
        return by_votes_LF.T.unflatten(0, (*self.parents, by_votes_EDL.shape[1]))

    def _sum_gradients(self, left_EXT: Tensor, right_ETL: Tensor) -> Tensor:
        return torch.bmm(left_EXT, right_ETL)


class VoteMoments(VoteProducts):
    """The moments of the votes of some images, with a record of all products with the moments.

    The moments are [U, U^2]. U is a vote minus the plain mean of the votes over the children.

    Args:
        votes_BMJDL: Votes with the children as the last axis.
    """

    @staticmethod
    def read_constants(votes: LocalVotes, votes_BMJDL: Tensor) -> list[Tensor]:
        """Return the activations [B, M, L] of the children."""
        return [votes.local_activation()]

    def local_activation(self) -> Tensor:
        """Return the activations [B, M, L] of the children."""
        return self.constants[0]

    def __init__(self, votes_BMJDL: Tensor) -> None:
        super().__init__(votes_BMJDL)
        votes_EDL = self.factor_EXL
        parents, numbers, children = votes_EDL.shape
        centre_ED = votes_EDL.mean(dim=2)
        self.centre_BMJD = centre_ED.unflatten(0, self.parents)
        self.factor_EXL = votes_EDL.new_empty(parents, 2 * numbers, children)
        self.difference_EDL, squared_EDL = self.factor_EXL.chunk(2, dim=1)
        torch.sub(votes_EDL, centre_ED[:, :, None], out=self.difference_EDL)
        torch.mul(self.difference_EDL, self.difference_EDL, out=squared_EDL)

    def fit_gaussians(self, share_BMJL: Tensor, floor: float) -> tuple[Tensor, Tensor]:
        """Compute the mean and the variance of weighted votes from the moments, each [B, M, J, D].

        Args:
            share_BMJL: Weights of the votes. Over the children they sum to 1, or to less if no
                child of the parent is active.
            floor: Number added to every variance.
        """
        first_BMJD, second_BMJD = self.sum_votes(share_BMJL).chunk(2, dim=3)
        total_BMJ1 = share_BMJL.sum(dim=3, keepdim=True)
        shift_BMJD = first_BMJD - (1 - total_BMJ1) * self.centre_BMJD
        spread_BMJD = second_BMJD - shift_BMJD * (2 * first_BMJD - total_BMJ1 * shift_BMJD)
        return self.centre_BMJD + shift_BMJD, spread_BMJD.clamp(min=0) + floor

    def compute_distances(self, mean_BMJD: Tensor, variance_BMJD: Tensor) -> Tensor:
        """Compute sum_d (V_ld - mean_d)^2 / variance_d [B, M, J, L] for each vote V_l."""
        shift_BMJD = mean_BMJD - self.centre_BMJD
        precision_BMJD = variance_BMJD.reciprocal()
        scaled_BMJD = precision_BMJD * shift_BMJD
        product_BMJL = self.compare_votes(torch.cat([-2 * scaled_BMJD, precision_BMJD], dim=3))
        return product_BMJL + (scaled_BMJD * shift_BMJD).sum(dim=3, keepdim=True)

    def _sum_gradients(self, left_EXT: Tensor, right_ETL: Tensor) -> Tensor:
        """Compute the gradient with respect to the votes, U' + 2 U (U^2)'.

        Here X' is the gradient of the loss with respect to X.
        """
        of_difference_EDT, of_square_EDT = left_EXT.chunk(2, dim=1)
        by_votes_EDL = torch.bmm(2 * of_square_EDT, right_ETL).mul_(self.difference_EDL)
        return by_votes_EDL.baddbmm_(of_difference_EDT, right_ETL)


def form_votes(votes: Any, kind: type[FormedVotes] = FormedVotes) -> Any:
    """Form the votes of a layer, unless they are formed already.

    Args:
        votes: Votes of a layer, or the `FormedVotes` that a fast implementation passes.
        kind: Class of the result, if the votes are not formed yet.
    """
    return votes if isinstance(votes, FormedVotes) else kind(votes)


def make_fast(
    reference: Callable[..., Routed], kind: type[VoteProducts] = VoteProducts
) -> Callable[..., Routed]:
    """Make the fast implementation of a reference that reads its votes through `form_votes`.

    The fast implementation needs less time and memory and cannot record a trace. It routes a few
    images at a time; this is possible because images do not influence each other. The votes of
    these images stay in the cache. If no gradients are needed, no other votes are in memory.

    Args:
        reference: Reference implementation of a variant.
        kind: Class of the votes that the fast implementation passes to the reference.

    Returns:
        A function with the arguments of the reference except `with_trace`.
    """
    signature = inspect.signature(reference)

    def route_part(votes: LocalVotes, given: Mapping[str, Any]) -> Routed:
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}

        def body(products: VoteProducts, *leaves: Tensor) -> Routed:
            products.votes, products.constants = votes, leaves[len(tensors) :]
            replaced = dict(zip(tensors, leaves, strict=False))
            return reference(**{**given, **replaced, "votes": products})

        votes_BMJDL = votes.form_numbers_first()
        leaves = *tensors.values(), *kind.read_constants(votes, votes_BMJDL)
        return Routed(*apply_to_votes(kind, body, votes_BMJDL, *leaves))

    def fast(votes: LocalVotes, *arguments: Any, **options: Any) -> Routed:
        given = signature.bind(votes, *arguments, **options).arguments
        return join_routed([route_part(part, given) for part in split_images(votes)])

    return fast


Body = Callable[..., Sequence[Any]]  # each item of the result is a tensor or None


def apply_to_votes(
    kind: type[VoteProducts], body: Body, votes_BMJDL: Tensor, *leaves: Tensor
) -> Sequence[Any]:
    """Compute `body(kind(votes_BMJDL), *leaves)` as one differentiable operation.

    The backward pass differentiates all recorded products with the votes together.

    Args:
        kind: Class that records the products.
        body: Function that computes tensors from an instance of `kind` and the leaves.
        votes_BMJDL: Votes with the children as the last axis.
        *leaves: Other tensors that `body` reads. They may need a gradient.

    Returns:
        The tensors that `body` returns, and None where `body` returns None.
    """
    with _without_tf32():
        if torch.is_grad_enabled():
            return _ProductsFunction.apply(kind, body, votes_BMJDL, *leaves)
        return body(kind(votes_BMJDL), *leaves)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Switch TF32 off inside a context, because products are subtracted from each other."""
    was_allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was_allowed


class _ProductsFunction(torch.autograd.Function):
    """An autograd function that runs `body` in a separate graph, in which votes are constants."""

    @staticmethod
    def forward(
        ctx: Any, kind: type[VoteProducts], body: Body, votes_BMJDL: Tensor, *leaves: Tensor
    ) -> tuple[Tensor | None, ...]:
        votes = kind(votes_BMJDL)
        with torch.enable_grad():
            detached = [leaf.detach().requires_grad_() for leaf in leaves]
            outputs = body(votes, *detached)
        ctx.set_materialize_grads(False)
        ctx.votes, ctx.leaves, ctx.outputs = votes, detached, outputs
        return tuple(None if output is None else output.detach() for output in outputs)

    @staticmethod
    @once_differentiable
    @_without_tf32()
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the gradients with respect to the votes and the leaves.

        Second derivatives raise an error.
        """
        pairs = zip(ctx.outputs, by_outputs, strict=True)
        known = [(output, by) for output, by in pairs if by is not None and output.requires_grad]
        if not known:
            return (None,) * (3 + len(ctx.leaves))
        outputs, by_known = zip(*known, strict=True)
        sources = [*ctx.votes.products, *ctx.leaves]
        gradients = torch.autograd.grad(
            outputs, sources, by_known, retain_graph=True, allow_unused=True
        )
        products = len(ctx.votes.products)
        by_votes_BMJDL = ctx.votes.differentiate_votes(gradients[:products])
        return None, None, by_votes_BMJDL, *gradients[products:]
