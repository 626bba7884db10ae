"""What all routing variants have in common: what they return, how a child divides itself, and how
the rest of the project makes and calls them. Each variant is a file of this folder.

One child position stands below several parent positions, and the parents at all of them compete for
it, so its shares are spread over the local votes of all of them.

Shape letters: B batch, I children, J parents or parent types, D parent pose, M parent positions, K
kernel offsets, N child positions, L = K I children below a parent position.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

AUTO = "auto"  # of `routing.impl`


class Routed(NamedTuple):
    """What routing returns.

    pose_BJD and act_BJ (0..1) of the parents, position by position where there are several;
    coupling_BIJ where the algorithm has one and every child votes for every parent; trace, on
    request: of each iteration a dictionary with at least "coupling" [B, M, L, J], by which votes
    were weighted, and "pose" [B, M, J, D]; logit_BJ, where the activation is a sigmoid that can
    saturate: its input.
    """

    pose_BJD: Tensor
    act_BJ: Tensor
    coupling_BIJ: Tensor | None = None
    trace: list[dict[str, Tensor]] | None = None
    logit_BJ: Tensor | None = None


def make_routed(
    pose_BMJD: Tensor,
    act_BMJ: Tensor,
    coupling_BMLJ: Tensor,
    trace: list[dict[str, Tensor]] | None = None,
    logit_BMJ: Tensor | None = None,
) -> Routed:
    """What routing returns, position by position."""
    return Routed(
        pose_BJD=pose_BMJD.flatten(1, 2),
        act_BJ=act_BMJ.flatten(1),
        coupling_BIJ=coupling_BMLJ[:, 0] if coupling_BMLJ.shape[1] == 1 else None,
        trace=trace,
        logit_BJ=None if logit_BMJ is None else logit_BMJ.flatten(1),
    )


def make_routed_by_length(
    pose_BMJD: Tensor, coupling_BMLJ: Tensor, trace: list[dict[str, Tensor]] | None = None
) -> Routed:
    """The same, of parents that are as active as their pose is long."""
    length_BMJ = torch.linalg.vector_norm(pose_BMJD, dim=-1)
    return make_routed(pose_BMJD, length_BMJ, coupling_BMLJ, trace)


def join_routed(parts: Sequence[Routed]) -> Routed:
    """What routing returned for some images at a time, of all of them; no traces."""
    if len(parts) == 1:
        return parts[0]
    joined = [None if one[0] is None else torch.cat(one) for one in zip(*parts, strict=True)]
    pose_BJD, act_BJ, coupling_BIJ, _, logit_BJ = joined
    assert pose_BJD is not None
    assert act_BJ is not None
    return Routed(pose_BJD, act_BJ, coupling_BIJ, logit_BJ=logit_BJ)


class LayerSizes(NamedTuple):
    """Of a layer that is routed: children below one position, parents there, numbers of a pose."""

    children: int
    parents: int
    child_pose: int
    parent_pose: int


class RoutingFactory(Protocol):
    """Makes the routing of one layer: the partial that `conf/routing/*.yaml` instantiates to."""

    def __call__(self, *, sizes: LayerSizes) -> nn.Module: ...


def make_class_routing(routing: RoutingFactory, sizes: LayerSizes) -> nn.Module:
    """The routing of a layer whose parents are the classes.

    A variant that starts with other values there has the method `use_class_values`.
    """
    layer = routing(sizes=sizes)
    use_class_values: Any = getattr(layer, "use_class_values", None)
    if use_class_values is not None:
        use_class_values()
    return layer


class Route:
    """Routes the votes of a layer by an implementation of its variant, as `choose_impl` says.

    used: the names of those that have routed so far.
    """

    def __init__(
        self,
        impls: Mapping[str, Callable[..., Routed]],
        impl: str,
        conditions: Mapping[str, Callable[..., bool]],
    ) -> None:
        self.impls, self.impl, self.conditions = impls, impl, conditions
        self.used: set[str] = set()

    def __call__(self, votes: Any, *arguments: Any, **options: Any) -> Routed:
        """Route `votes`."""
        name = self.impl
        if name == AUTO:
            asked = self.conditions.items()
            unable = {each for each, can_route in asked if not can_route(votes, **options)}
            name = [each for each in self.impls if each not in unable][-1]
        self.used.add(name)
        return self.impls[name](votes, *arguments, **options)


def choose_impl(
    impls: Mapping[str, Callable[..., Routed]],
    impl: str,
    conditions: Mapping[str, Callable[..., bool]] | None = None,
) -> Route:
    """Return the implementation of `impls` that is named `impl`; nothing else routes in its place.

    auto: the last of `impls` that can, asked where votes are routed, since only there their device
    is known: `conditions` has a question on votes and options for each that cannot always, which
    the first can. Raises ValueError for another name.
    """
    if impl not in (AUTO, *impls):
        raise ValueError(f"routing.impl must be one of {', '.join((AUTO, *impls))}, got {impl}")
    return Route(impls, impl, conditions or {})


def describe_routing(network: nn.Module) -> str | None:
    """Return how the votes of `network` were routed, such as `fast` or `auto: triton`; None where
    none are.
    """
    layers = (getattr(module, "route", None) for module in network.modules())
    routes = [route for route in layers if isinstance(route, Route)]
    if not routes:
        return None
    used = " or ".join(sorted(set().union(*(route.used for route in routes))))
    impl = routes[0].impl
    return f"{AUTO}: {used}" if impl == AUTO and used else used or impl


class ReceptiveFields(NamedTuple):
    """Which children stand below which parents: child_MK, the child position at kernel offset k of
    parent position m; of how many child positions.
    """

    child_MK: Tensor
    num_child_positions: int


class CouplingRule(NamedTuple):
    """How the children of a routing divide themselves: as in `coupling_softmax`."""

    norm: str = "all"
    none_of_the_above: bool = False


def coupling_softmax(
    logit_BMLJ: Tensor,
    fields: ReceptiveFields | None,
    norm: str = "all",
    none_of_the_above: bool = False,
) -> Tensor:
    """The shares [B, M, L, J] of each child: a softmax of the logits over its parents.

    fields None: every child stands below one position only. norm: among whom a child divides
    itself. all: the parents of all types at all positions above it; types: at each position anew,
    the types there; positions: for each type anew, the positions, but where there is one position
    alone, the types, as in the authors' last layer. none_of_the_above: one more slot, of logit 0,
    takes a share that no parent gets.
    """
    if fields is None:
        norm = "types"
    if norm == "types" and not none_of_the_above:
        return torch.softmax(logit_BMLJ, dim=3)
    # A child's largest logit is subtracted before the exponential, and is no part of the gradient.
    largest_BMLE = logit_BMLJ.detach()
    if norm != "positions":
        largest_BMLE = largest_BMLE.amax(dim=3, keepdim=True)
    if fields is not None and norm != "types":
        largest_BMLE = _combine_by_child(largest_BMLE, fields, largest=True)
    if none_of_the_above:
        largest_BMLE = largest_BMLE.clamp(min=0)
    part_BMLJ = (logit_BMLJ - largest_BMLE).exp()
    total_BMLE = part_BMLJ if norm == "positions" else part_BMLJ.sum(dim=3, keepdim=True)
    if fields is not None and norm != "types":
        total_BMLE = _combine_by_child(total_BMLE, fields)
    if none_of_the_above:
        total_BMLE = total_BMLE + (-largest_BMLE).exp()
    return part_BMLJ / total_BMLE


def _combine_by_child(part_BMLE: Tensor, fields: ReceptiveFields, largest: bool = False) -> Tensor:
    """Of each child the sum, or the largest, over its positions, at each of these."""
    child_E = fields.child_MK.flatten()
    part_BEF = part_BMLE.reshape(len(part_BMLE), len(child_E), -1)
    shape = (len(part_BEF), fields.num_child_positions, part_BEF.shape[2])
    children_BNF = part_BEF.new_full(shape, -torch.inf if largest else 0.0)
    if largest:
        index_BEF = child_E[None, :, None].expand_as(part_BEF)
        children_BNF.scatter_reduce_(1, index_BEF, part_BEF, "amax")
    else:
        children_BNF = children_BNF.index_add(1, child_E, part_BEF)
    return children_BNF[:, child_E].view_as(part_BMLE)
