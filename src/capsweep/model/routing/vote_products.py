"""Weighted sums of votes and products of votes with poses, as matrix products.

A routing reads its votes in two ways: by sums over children, sum_l s_l U_l, and by scalar products
p . U_l. Each is one matrix product. All tensors but the votes are smaller by a factor D.
`FormedVotes` computes the products plainly, for reference implementations. `make_fast` makes the
fast implementation of a variant: it calls the reference with `VoteProducts`. In the backward pass
the gradient of U is a sum of outer products over all iterations, which is one matrix product too.
`apply_to_votes` leaves the small tensors to autograd.

Gaussians are computed from moments of the votes. With U = V - c for any constant c, all iterations
share Q = [U, U^2], which takes the place of U:

    with shares s:        n = sum_l s_l;  [m1, m2] = sum_l s_l Q_l;  d = m1 - (1 - n) c
                          mu = c + d;   var = m2 - 2 d m1 + n d^2 + floor
    with precision p:     sum_d p_d (V_ld - mu_d)^2 = [-2 p d, p] Q_l + sum_d p_d d_d^2

The variance and the distances are differences of larger numbers. c is the plain mean of the votes.
The rounding error of variance and distances is therefore relative to the squared spread of all
votes around their mean. It was measured in single precision with 16 numbers, for a Gaussian of 40
votes that agree to 0.01 among 160 votes with a spread of 10. The error of the variance is at most
3e-6 (the floor of EM is 5e-4). The error of a squared distance is at most 0.11 (7 %). In double
precision the error does not matter. TF32 rounds 8,000 times as coarsely, so this module switches
TF32 off.

Shape letters: B batch, M parent positions, J parent types, D parent pose, L children below a
position; E = B M J parents; X = D numbers of U, or 2 D of Q. `by_x` is the gradient of the loss
with respect to x.
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
    """The formed votes of a layer, with the operations that references apply to them.

    Args:
        votes: Votes of the children.

    Attributes:
        votes_BMJLD: The votes.
        zero_BMJL: Zeros, the logits of children that prefer no parent.
    """

    def __init__(self, votes: LocalVotes) -> None:
        self.votes = votes
        self.votes_BMJLD = votes.form_local().transpose(2, 3).contiguous()
        self.zero_BMJL = _make_zeros(self.votes_BMJLD[..., 0])

    def local_activation(self) -> Tensor:
        """Return the activations [B, M, L] of the children; raise ValueError if there are none."""
        return self.votes.local_activation()

    def sum_votes(self, share_BMJL: Tensor) -> Tensor:
        """Compute the weighted sums over the children, sum_l s_l V_l [B, M, J, D]."""
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
        """Compute squared distances [B, M, J, L] of votes from means, divided by the variance."""
        squared_BMJLD = (self.votes_BMJLD - mean_BMJD[..., None, :]).square()
        return torch.matmul(squared_BMJLD, (1 / variance_BMJD)[..., None]).squeeze(-1)

    def divide_children(
        self, logit_BMJL: Tensor, norm: str = "all", none_of_the_above: bool = False
    ) -> Tensor:
        """Compute the shares [B, M, J, L] of each child, as `coupling_softmax` does.

        If each position has its own softmax, the softmax works on the axis order [B, M, J, L]
        directly.

        Args:
            logit_BMJL: Routing logits.
            norm: The set of parents that share a child: "all", "types" or "positions".
            none_of_the_above: Whether a share of each child may go to no parent. The softmax then
                has one more slot for this share, with the logit 0.
        """
        if logit_BMJL.shape[1] == 1 or norm == "types":
            return softmax_over_parents(logit_BMJL, none_of_the_above, dim=2)
        return self.votes.divide_children(logit_BMJL.mT, norm, none_of_the_above).mT

    def apply_given(self, coupling_BMJL: Tensor) -> Tensor:
        """Return the couplings given with the votes, if any, else those of the variant."""
        given_BMLJ = self.votes.given_BMLJ
        return coupling_BMJL if given_BMLJ is None else given_BMLJ.mT


def _make_zeros(sample_BMJL: Tensor) -> Tensor:
    """Make zeros [B, M, J, L] in which the parents of a child are neighbours in memory."""
    return torch.zeros_like(sample_BMJL.mT, memory_format=torch.contiguous_format).mT


class VoteProducts(FormedVotes):
    """The votes U of some images, and a record of the products that routing computed with them.

    Args:
        votes_BMJDL: Votes U with the children as the last axis.

    Attributes:
        constants: Other tensors that the routing reads, such as activations. They may need a
            gradient.
    """

    constants: Sequence[Tensor] = ()

    @staticmethod
    def read_constants(votes: LocalVotes, votes_BMJDL: Tensor) -> list[Tensor]:
        """Return the tensors that the routing reads besides the votes; here there are none."""
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
        """Compute the scalar products p . U_l [B, M, J, L] of votes with poses p of X numbers."""
        pose_EX = pose_BMJD.flatten(0, 2)
        product_EL = torch.bmm(pose_EX[:, None], self.factor_EXL)[:, 0]
        self._record(product_EL, pose_EX, product_EL)
        return product_EL.unflatten(0, self.parents)

    def _record(self, product: Tensor, left_EX: Tensor, right_EL: Tensor) -> None:
        """Record a product for the backward pass.

        The product is itself one of the two factors `left_EX` and `right_EL`. In the backward pass
        its gradient takes the place of this factor.
        """
        if torch.is_grad_enabled():
            # U is constant in the body's graph, so a product with a constant becomes a leaf.
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
        if not pairs:  # the outputs depend on masses only
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
    """The moments [U, U^2] of the votes of some images, and a record of the products with them.

    U are the votes minus their plain mean over the children.

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
            share_BMJL: Weights of the votes, with sum 1 over the children, or less for parents
                without active children.
            floor: Number added to every variance.
        """
        first_BMJD, second_BMJD = self.sum_votes(share_BMJL).chunk(2, dim=3)
        total_BMJ1 = share_BMJL.sum(dim=3, keepdim=True)
        shift_BMJD = first_BMJD - (1 - total_BMJ1) * self.centre_BMJD
        spread_BMJD = second_BMJD - shift_BMJD * (2 * first_BMJD - total_BMJ1 * shift_BMJD)
        return self.centre_BMJD + shift_BMJD, spread_BMJD.clamp(min=0) + floor

    def compute_distances(self, mean_BMJD: Tensor, variance_BMJD: Tensor) -> Tensor:
        """Compute squared distances [B, M, J, L] of votes from means, divided by the variance."""
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


def compute_log_fit(
    scaled_BMJL: Tensor, variance_BMJD: Tensor, log_activation_BMJ: Tensor
) -> Tensor:
    """Compute log a_j + log p_j(V_ij) [B, M, J, L] of parents that are Gaussians.

    Args:
        scaled_BMJL: Squared distances between votes and means, in units of the variance.
        variance_BMJD: Variances of the parents.
        log_activation_BMJ: Logarithms of the activations a_j.
    """
    numbers = variance_BMJD.shape[3]
    volume_BMJ = variance_BMJD.log().sum(dim=3) + numbers * math.log(2 * math.pi)
    return (log_activation_BMJ - 0.5 * volume_BMJ)[..., None] - 0.5 * scaled_BMJL


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
    images at a time, because images do not influence each other. The votes of these images stay in
    the cache. Without gradients, memory holds only these votes.

    Args:
        reference: Reference implementation of a variant.
        kind: Class of votes that the reference reads in the fast implementation.

    Returns:
        A function with the arguments of the reference, without `with_trace`.
    """
    signature = inspect.signature(reference)

    def route_part(votes: LocalVotes, given: Mapping[str, Any]) -> Routed:
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        fields: list[str] = []

        def body(products: VoteProducts, *leaves: Tensor) -> list[Tensor]:
            products.votes, products.constants = votes, leaves[len(tensors) :]
            replaced = dict(zip(tensors, leaves, strict=False))
            routed = reference(**{**given, **replaced, "votes": products})._asdict()
            fields.extend(name for name, value in routed.items() if value is not None)
            return [routed[name] for name in fields]

        votes_BMJDL = votes.form_numbers_first()
        leaves = *tensors.values(), *kind.read_constants(votes, votes_BMJDL)
        outputs = apply_to_votes(kind, body, votes_BMJDL, *leaves)
        return Routed(**dict(zip(fields, outputs, strict=True)))

    def fast(votes: LocalVotes, *arguments: Any, **options: Any) -> Routed:
        given = signature.bind(votes, *arguments, **options).arguments
        return join_routed([route_part(part, given) for part in split_images(votes)])

    return fast


Body = Callable[..., Sequence[Tensor]]


def apply_to_votes(
    kind: type[VoteProducts], body: Body, votes_BMJDL: Tensor, *leaves: Tensor
) -> Sequence[Any]:
    """Compute `body(kind(votes), *leaves)`, and differentiate all products with the votes together.

    Args:
        kind: Class that records the products.
        body: Function of the recorded votes and the leaves.
        votes_BMJDL: Votes with the children as the last axis.
        *leaves: Other tensors that need a gradient.

    Returns:
        The tensors that `body` returns.
    """
    with _without_tf32():
        if torch.is_grad_enabled():
            return _ProductsFunction.apply(kind, body, votes_BMJDL, *leaves)
        return body(kind(votes_BMJDL), *leaves)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Switch TF32 off inside a context, because small differences of products matter."""
    was_allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was_allowed


class _ProductsFunction(torch.autograd.Function):
    """An autograd function that runs its body in a separate graph, where votes are constants."""

    @staticmethod
    def forward(
        ctx: Any, kind: type[VoteProducts], body: Body, votes_BMJDL: Tensor, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        votes = kind(votes_BMJDL)
        with torch.enable_grad():
            detached = [leaf.detach().requires_grad_() for leaf in leaves]
            outputs = body(votes, *detached)
        ctx.set_materialize_grads(False)
        ctx.votes, ctx.leaves, ctx.outputs = votes, detached, outputs
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        return _differentiate_body(ctx, *grad_outputs)


@once_differentiable
@_without_tf32()
def _differentiate_body(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
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
