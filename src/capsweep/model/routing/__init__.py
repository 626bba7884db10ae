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
    coupling_BMLJ: Tensor,
    trace: list[dict[str, Tensor]] | None = None,
    *,
    act_BMJ: Tensor | None = None,
    logit_BMJ: Tensor | None = None,
) -> Routed:
    """Return what routing returns, position by position.

    act_BMJ: None, as active as their pose is long.
    """
    active_BMJ = torch.linalg.vector_norm(pose_BMJD, dim=-1) if act_BMJ is None else act_BMJ
    return Routed(
        pose_BJD=pose_BMJD.flatten(1, 2),
        act_BJ=active_BMJ.flatten(1),
        coupling_BIJ=coupling_BMLJ[:, 0] if coupling_BMLJ.shape[1] == 1 else None,
        trace=trace,
        logit_BJ=None if logit_BMJ is None else logit_BMJ.flatten(1),
    )


def join_routed(parts: Sequence[Routed]) -> Routed:
    """Return of all images what routing returned for some at a time; no traces."""
    if len(parts) == 1:
        return parts[0]
    joined = [None if one[0] is None else torch.cat(one) for one in zip(*parts, strict=True)]
    pose_BJD, act_BJ, coupling_BIJ, _, logit_BJ = joined
    assert pose_BJD is not None
    assert act_BJ is not None
    return Routed(pose_BJD, act_BJ, coupling_BIJ, logit_BJ=logit_BJ)


class LayerSizes(NamedTuple):
    """The sizes of a layer that is routed.

    Attributes:
        children: below one position.
        parents: there.
        child_pose: numbers of a child's pose.
        parent_pose: numbers of a parent's pose.
        of_classes: whether the parents are the classes.
    """

    children: int
    parents: int
    child_pose: int
    parent_pose: int
    of_classes: bool = False


class RoutingFactory(Protocol):
    """Makes the routing of one layer: the partial that `conf/routing/*.yaml` instantiates to."""

    def __call__(self, *, sizes: LayerSizes) -> nn.Module: ...


class CouplingRule(NamedTuple):
    """How the children of a routing divide themselves: as in `coupling_softmax`."""

    norm: str = "all"
    none_of_the_above: bool = False


class Route:
    """Routes the votes of a layer by one implementation of its variant, and by no other.

    impl: its name in `impls`, or auto: the last of them that can, chosen where votes are routed,
    since only there their device is known. conditions: a question on votes and options for each
    that cannot always. used: the names of those that have routed so far. Raises ValueError for
    another name.
    """

    def __init__(
        self,
        impls: Mapping[str, Callable[..., Routed]],
        impl: str,
        conditions: Mapping[str, Callable[..., bool]],
    ) -> None:
        if impl not in (AUTO, *impls):
            raise ValueError(f"routing.impl must be one of {', '.join((AUTO, *impls))}, got {impl}")
        self.impls, self.impl, self.conditions = impls, impl, conditions
        self.used: set[str] = set()

    def __call__(self, votes: Any, **arguments: Any) -> Routed:
        """Route `votes`."""
        name = self.impl
        if name == AUTO:
            asked = self.conditions.items()
            unable = {each for each, can_route in asked if not can_route(votes, **arguments)}
            name = [each for each in self.impls if each not in unable][-1]
        self.used.add(name)
        return self.impls[name](votes, **arguments)


class RoutingLayer(nn.Module):
    """The routing of one layer, with what its variant needs beside the votes.

    impls, impl, conditions: as in `Route`; `reference` also takes with_trace, and given_BMLJ, the
    couplings by which it forms the parents at once. arguments: what all of them take, by keyword; a
    parameter among them is learned.

    Attributes:
        coupling_rule: among whom a child divides itself; None where its couplings have no sum.
        has_activations: whether its parents are more or less active.
        reads_activations: whether it asks how active its children are.
        votes_kind: the only kind of votes that it routes; None: all.
    """

    coupling_rule: CouplingRule | None = None
    has_activations = True
    reads_activations = False
    votes_kind: type | None = None

    def __init__(
        self,
        impls: Mapping[str, Callable[..., Routed]],
        impl: str,
        conditions: Mapping[str, Callable[..., bool]] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        self.reference = impls["reference"]
        self.route: Callable[..., Routed] = Route(impls, impl, conditions or {})
        self.argument_names = tuple(arguments)
        for name, value in arguments.items():
            setattr(self, name, value)

    def get_arguments(self) -> dict[str, Any]:
        """Return what the implementations take beside the votes."""
        return {name: getattr(self, name) for name in self.argument_names}

    def forward(self, votes: Any, with_trace: bool = False) -> Routed:
        """Route the votes of this layer's children; with a trace, by the reference."""
        arguments = self.get_arguments()
        if with_trace:
            return self.reference(votes, **arguments, with_trace=True)
        return self.route(votes, **arguments)

    def form_parents(self, votes: Any, coupling_BMLJ: Tensor) -> Routed:
        """Form the parents of children with these couplings."""
        return self.reference(votes, **self.get_arguments(), given_BMLJ=coupling_BMLJ)


def make_routing(routing: RoutingFactory, sizes: LayerSizes, votes_kind: Any) -> nn.Module:
    """Return the routing of a layer whose votes are of a kind.

    Raises ValueError for a variant that routes others alone.
    """
    layer = routing(sizes=sizes)
    only: Any = getattr(layer, "votes_kind", None)
    if only not in (None, votes_kind):
        impl = getattr(getattr(layer, "route", None), "impl", AUTO)
        typed = f"routing={name_variant(layer)}" + (f" routing.impl={impl}" if impl != AUTO else "")
        cure = f"add model={only.MODEL}" + (" or set routing.impl=auto" if impl != AUTO else "")
        raise ValueError(f"{typed} is for {only.CAPSULES} alone; {cure}")
    return layer


def name_variant(routing: nn.Module) -> str:
    """Return the name of a variant, that of its file."""
    return type(routing).__module__.rpartition(".")[2]


def find_routes(network: nn.Module) -> list[Route]:
    """Return what routes the layers of `network`."""
    routes = (getattr(module, "route", None) for module in network.modules())
    return [route for route in routes if isinstance(route, Route)]


def use_references(network: nn.Module) -> None:
    """Let the reference of its variant route each layer of `network`."""
    for route in find_routes(network):
        route.impl = "reference"


def describe_routing(network: nn.Module) -> str | None:
    """Return how the votes of `network` were routed, such as `fast` or `auto: triton`; None where
    none are.
    """
    routes = find_routes(network)
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
