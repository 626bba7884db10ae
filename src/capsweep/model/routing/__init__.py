"""What all routing variants have in common: what they return, how a child divides itself, and how
the rest of the project makes and calls them. Each variant is a file of this folder.

One child position stands below several parent positions, and the parents at all of them compete for
it, so its shares are spread over the local votes of all of them.

Shape letters: B batch, I children, J parents or parent types, D parent pose, M parent positions, K
kernel offsets, N child positions, L = K I children below a parent position.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

AUTO = "auto"  # of `routing.impl`
OF_A_CALL = ("votes", "with_trace")  # what no layer has


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
    trace: list[dict[str, Tensor]],
    with_trace: bool,
    *,
    act_BMJ: Tensor | None = None,
    logit_BMJ: Tensor | None = None,
) -> Routed:
    """Return what routing returns after the last of the traced iterations, position by position.

    act_BMJ: None, as active as their pose is long.
    """
    pose_BMJD, coupling_BMLJ = trace[-1]["pose"], trace[-1]["coupling"]
    active_BMJ = torch.linalg.vector_norm(pose_BMJD, dim=-1) if act_BMJ is None else act_BMJ
    return Routed(
        pose_BJD=pose_BMJD.flatten(1, 2),
        act_BJ=active_BMJ.flatten(1),
        coupling_BIJ=coupling_BMLJ[:, 0] if coupling_BMLJ.shape[1] == 1 else None,
        trace=trace if with_trace else None,
        logit_BJ=None if logit_BMJ is None else logit_BMJ.flatten(1),
    )


def join_routed(parts: Sequence[Routed]) -> Routed:
    """Return of all images what routing returned for some at a time; no traces."""
    if len(parts) == 1:
        return parts[0]
    joined: Any = (None if one[0] is None else torch.cat(one) for one in zip(*parts, strict=True))
    return Routed(*joined)


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


class RoutingLayer(nn.Module):
    """The routing of one layer, with what its variant needs beside the votes.

    impls: implementations by name. `reference` names what all take beside the votes; a layer has
    an attribute of each of these names, and a parameter among them is learned. `reference` alone
    takes with_trace too, and settles for couplings that votes are given.
    impl: the name of one of them, or auto. Raises ValueError for another name.

    Attributes:
        used: the implementations that have routed so far.
        coupling_rule: among whom a child divides itself; None where its couplings have no sum.
        has_activations: whether its parents are more or less active.
        reads_activations: whether it asks how active its children are.
        votes_kind: the only kind of votes that it routes; None: all.
    """

    coupling_rule: CouplingRule | None = None
    has_activations = True
    reads_activations = False
    votes_kind: type | None = None

    def __init__(self, impls: Mapping[str, Callable[..., Routed]], impl: str) -> None:
        super().__init__()
        if impl not in (AUTO, *impls):
            raise ValueError(f"routing.impl must be one of {', '.join((AUTO, *impls))}, got {impl}")
        self.impls, self.impl = impls, impl
        self.used: set[str] = set()
        names = inspect.signature(impls["reference"]).parameters
        self.argument_names = [name for name in names if name not in OF_A_CALL]

    def get_arguments(self) -> dict[str, Any]:
        """Return what the implementations take beside the votes."""
        return {name: getattr(self, name) for name in self.argument_names}

    def choose_impl(self, votes: Any) -> str:
        """Return which implementation `auto` is for these votes, whose device is known only now."""
        return "fast" if "fast" in self.impls else "reference"

    def route(self, votes: Any, **arguments: Any) -> Routed:
        """Route by the implementation that was asked for."""
        name = self.choose_impl(votes) if self.impl == AUTO else self.impl
        self.used.add(name)
        return self.impls[name](votes, **arguments)

    def forward(self, votes: Any, with_trace: bool = False) -> Routed:
        """Route the votes of this layer's children; with a trace, by the reference."""
        if with_trace:
            return self.impls["reference"](votes, **self.get_arguments(), with_trace=True)
        return self.route(votes, **self.get_arguments())

    def form_parents(self, votes: Any, coupling_BMLJ: Tensor) -> Routed:
        """Form the parents of children with these couplings."""
        given = replace(votes, given_BMLJ=coupling_BMLJ)
        return self.impls["reference"](given, **self.get_arguments())


def make_routing(routing: RoutingFactory, sizes: LayerSizes, votes_kind: Any) -> nn.Module:
    """Return the routing of a layer whose votes are of a kind.

    Raises ValueError for a variant that routes others alone.
    """
    layer = routing(sizes=sizes)
    only: Any = getattr(layer, "votes_kind", None)
    if only not in (None, votes_kind):
        name, cure = f"routing={name_variant(layer)}", f"add model={only.MODEL}"
        if (impl := getattr(layer, "impl", AUTO)) != AUTO:
            name, cure = f"{name} routing.impl={impl}", f"{cure} or set routing.impl=auto"
        raise ValueError(f"{name} is for {only.CAPSULES} alone; {cure}")
    return layer


def name_variant(routing: nn.Module) -> str:
    """Return the name of a variant: its `variant`, or that of its file."""
    return getattr(routing, "variant", type(routing).__module__.rpartition(".")[2])


def find_layers(network: nn.Module) -> list[RoutingLayer]:
    """Return what routes the layers of `network`."""
    return [module for module in network.modules() if isinstance(module, RoutingLayer)]


def describe_routing(network: nn.Module) -> str | None:
    """Return how the votes of `network` were routed, such as `fast` or `auto: triton`; None where
    none are.
    """
    layers = find_layers(network)
    if not layers:
        return None
    used = " or ".join(sorted(set().union(*(layer.used for layer in layers))))
    impl = layers[0].impl
    return f"{AUTO}: {used}" if impl == AUTO and used else used or impl


class ReceptiveFields(NamedTuple):
    """Which children stand below which parents: child_MK, the child position at kernel offset k of
    parent position m; of how many child positions.
    """

    child_MK: Tensor
    num_child_positions: int


def softmax_over_parents(logit: Tensor, none_of_the_above: bool, dim: int) -> Tensor:
    """Return each child's shares among the parents at one position, which are the axis `dim`."""
    if not none_of_the_above:
        return torch.softmax(logit, dim=dim)
    none = torch.zeros_like(logit.narrow(dim, 0, 1))
    return torch.softmax(torch.cat([none, logit], dim=dim), dim=dim).narrow(dim, 1, logit.size(dim))


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
    if fields is None or norm == "types":
        return softmax_over_parents(logit_BMLJ, none_of_the_above, dim=3)
    # A child's largest logit is subtracted before the exponential, and is no part of the gradient.
    largest_BMLE = logit_BMLJ.detach()
    if norm != "positions":
        largest_BMLE = largest_BMLE.amax(dim=3, keepdim=True)
    largest_BMLE = _combine_by_child(largest_BMLE, fields, largest=True)
    if none_of_the_above:
        largest_BMLE = largest_BMLE.clamp(min=0)
    part_BMLJ = (logit_BMLJ - largest_BMLE).exp()
    total_BMLE = part_BMLJ if norm == "positions" else part_BMLJ.sum(dim=3, keepdim=True)
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
