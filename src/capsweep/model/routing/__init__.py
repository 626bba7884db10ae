"""Common parts of all routing variants: the result, the layer, and the coupling softmax.

Each variant is a file of this folder with a subclass of `RoutingLayer`. The rest of the project
makes these layers with `make_routing`.

A child is "below" a parent position if the child lies in the receptive field of that position. One
child can be below several parent positions. `CouplingRule.norm` then says how the variant divides
the child: among the parents of all types at all these positions, separately at each position, or
separately for each type.

Shape letters: B batch, I children, J parents or parent types, D parent pose, M parent positions, K
kernel offsets, N child positions, L children below a parent position (L = K I).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

AUTO = "auto"  # value of `routing.impl`: the layer chooses the implementation
CALL_ARGUMENTS = ("votes", "with_trace")  # arguments of `reference` that a layer does not store


class Routed(NamedTuple):
    """The result of routing the votes of one layer.

    The axis J of poses, activations and logits contains all types at the first parent position,
    then all types at the second position, and so on. With M positions its length is M J.

    Attributes:
        pose_BJD: Poses of the parents.
        act_BJ: Activations of the parents, in 0..1.
        coupling_BIJ: Couplings of the last iteration. None if the algorithm has no couplings, or if
            there are several parent positions.
        trace: One dictionary per iteration. Each has at least the keys "coupling" [B, M, L, J] and
            "pose" [B, M, J, D]. None if no trace was requested.
        logit_BJ: Input of the sigmoid or softmax that computed `act_BJ`. A loss can read these
            logits instead of activations that are saturated. None if `act_BJ` was computed in
            another way.
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
    """Make the result of a routing from the trace of its iterations.

    Args:
        trace: One dictionary per iteration. The last dictionary has the poses and couplings of the
            result.
        with_trace: Whether the result contains the trace.
        act_BMJ: Activations of the parents. None: each activation is the length of the pose.
        logit_BMJ: Logits of the activations. None: the variant has no logits.

    Returns:
        The result. Its poses, activations and logits have one axis of M J parents.
    """
    pose_BMJD, coupling_BMLJ = trace[-1]["pose"], trace[-1]["coupling"]
    active_BMJ = torch.linalg.vector_norm(pose_BMJD, dim=-1) if act_BMJ is None else act_BMJ
    coupling_BIJ = coupling_BMLJ[:, 0] if coupling_BMLJ.shape[1] == 1 else None
    logit_BJ = None if logit_BMJ is None else logit_BMJ.flatten(1)
    kept = trace if with_trace else None
    return Routed(pose_BMJD.flatten(1, 2), active_BMJ.flatten(1), coupling_BIJ, kept, logit_BJ)


def join_routed(parts: Sequence[Routed]) -> Routed:
    """Concatenate the results of several groups of images along the batch axis.

    No result may have a trace.
    """
    if len(parts) == 1:
        return parts[0]
    joined: Any = (None if one[0] is None else torch.cat(one) for one in zip(*parts, strict=True))
    return Routed(*joined)


class LayerSizes(NamedTuple):
    """The sizes of a layer. They determine the shapes of the learned parameters of its routing.

    Attributes:
        children: Number of children below one parent position, L.
        parents: Number of parent types at one position, J.
        child_pose: Number of elements in the pose of a child, P.
        parent_pose: Number of elements in the pose of a parent, D.
        of_classes: Whether the parents are the class capsules.
    """

    children: int
    parents: int
    child_pose: int
    parent_pose: int
    of_classes: bool = False


class RoutingFactory(Protocol):
    """A callable that makes the routing of one layer.

    Hydra makes the factory from a file in `conf/routing` with `_partial_: true`. The factory has
    all options of the variant; only the sizes of the layer are missing.
    """

    def __call__(self, *, sizes: LayerSizes) -> nn.Module:
        """Make the routing of a layer with these sizes."""
        ...


class CouplingRule(NamedTuple):
    """The rule by which a routing divides each child among parents.

    Attributes:
        norm: The parents among which a child is divided. "all": all types at all positions above
            the child. "types": all types at one position, separately for each position above the
            child. "positions": one type at all positions above the child, separately for each type.
        none_of_the_above: Whether a share of each child may go to no parent.
    """

    norm: str = "all"
    none_of_the_above: bool = False


class RoutingLayer(nn.Module):
    """The routing of one layer: its learned parameters and its implementations.

    Each variant has a subclass. For each argument of the variant's `reference`, except `votes` and
    `with_trace`, the layer has an attribute of the same name. A learned argument is an
    `nn.Parameter`. Only `reference` can record a trace or use couplings that are given with the
    votes.

    Args:
        impls: Implementations by name; `reference` must be one of them.
        impl: Name of the implementation to use, or `auto`.

    Attributes:
        used: Names of the implementations that `route` has used so far.
        coupling_rule: How a child is divided among parents. None if the variant does not divide
            children: the couplings of a child then have no fixed sum.
        has_activations: Whether the variant computes activations of the parents. If not, all
            activations are 1.
        reads_activations: Whether the variant reads the activations of the children.
        squashes: Whether the poses of the parents are squashed, so that a head need not do it.
        votes_kind: The only class of votes that the layer can route. None: all classes.

    Raises:
        ValueError: If `impl` is neither `auto` nor a name in `impls`.
    """

    coupling_rule: CouplingRule | None = None
    has_activations = True
    reads_activations = False
    squashes = False
    votes_kind: type | None = None

    def __init__(self, impls: Mapping[str, Callable[..., Routed]], impl: str) -> None:
        super().__init__()
        if impl not in (AUTO, *impls):
            raise ValueError(f"routing.impl must be one of {', '.join((AUTO, *impls))}, got {impl}")
        self.impls, self.impl = impls, impl
        self.used: set[str] = set()
        names = inspect.signature(impls["reference"]).parameters
        self.argument_names = [name for name in names if name not in CALL_ARGUMENTS]

    def get_arguments(self) -> dict[str, Any]:
        """Return the arguments of the implementations by name, without `votes` and `with_trace`."""
        return {name: getattr(self, name) for name in self.argument_names}

    def choose_impl(self, votes: Any) -> str:
        """Return the name of the implementation that `auto` chooses for these votes.

        This is "fast" if the variant has an implementation of this name, else "reference". The
        choice of a subclass may depend on the class and the device of the votes.
        """
        return "fast" if "fast" in self.impls else "reference"

    def route(self, votes: Any, **arguments: Any) -> Routed:
        """Route the votes and add the name of the implementation to `used`.

        The attribute `impl` names the implementation. If `impl` is `auto`, `choose_impl` chooses.
        """
        name = self.choose_impl(votes) if self.impl == AUTO else self.impl
        self.used.add(name)
        return self.impls[name](votes, **arguments)

    def forward(self, votes: Any, with_trace: bool = False) -> Routed:
        """Route the votes of the children of this layer.

        Args:
            votes: Votes of the children, such as `Votes` or `ConvolutionalVotes`.
            with_trace: Whether to record each iteration. If so, the implementation is `reference`.
        """
        if with_trace:
            return self.impls["reference"](votes, **self.get_arguments(), with_trace=True)
        return self.route(votes, **self.get_arguments())

    def form_parents(self, votes: Any, coupling_BMLJ: Tensor) -> Routed:
        """Compute the parents from given couplings.

        Args:
            votes: Votes of the children.
            coupling_BMLJ: Couplings that every iteration uses instead of computing couplings.
        """
        given = replace(votes, given_BMLJ=coupling_BMLJ)
        return self.impls["reference"](given, **self.get_arguments())


def make_routing(routing: RoutingFactory, sizes: LayerSizes, votes_kind: Any) -> nn.Module:
    """Make the routing of a layer, and check that it can route the votes of this layer.

    Args:
        routing: Factory of the variant.
        sizes: Sizes of the layer.
        votes_kind: Class of the layer's votes, such as `Votes`.

    Raises:
        ValueError: If an option of the variant is invalid, or if the variant or its configured
            implementation routes only votes of another class.
    """
    layer = routing(sizes=sizes)
    required: Any = getattr(layer, "votes_kind", None)
    if required not in (None, votes_kind):
        name, cure = f"routing={name_variant(layer)}", f"add model={required.MODEL}"
        if (impl := getattr(layer, "impl", AUTO)) != AUTO:
            name, cure = f"{name} routing.impl={impl}", f"{cure} or set routing.impl=auto"
        raise ValueError(f"{name} is for {required.CAPSULES} only; {cure}")
    return layer


def name_variant(routing: nn.Module) -> str:
    """Return the name of a routing variant: its `variant` attribute, or the name of its file."""
    return getattr(routing, "variant", type(routing).__module__.rpartition(".")[2])


def find_layers(network: nn.Module) -> list[RoutingLayer]:
    """Return all routing layers of a network, in the order of its modules."""
    return [module for module in network.modules() if isinstance(module, RoutingLayer)]


def describe_routing(network: nn.Module) -> str | None:
    """Return the implementations that routed the votes of a network, such as "auto: triton".

    Returns:
        None if the network has no routing layer. `routing.impl` if no votes have been routed yet.
        Otherwise the names of the implementations, joined by " or "; if `routing.impl` is `auto`,
        the names come after "auto: ".
    """
    layers = find_layers(network)
    if not layers:
        return None
    used = " or ".join(sorted(set().union(*(layer.used for layer in layers))))
    impl = layers[0].impl
    return f"{AUTO}: {used}" if impl == AUTO and used else used or impl


class ReceptiveFields(NamedTuple):
    """The child positions in the receptive field of each parent position.

    Attributes:
        child_MK: Entry [m, k] is the child position at kernel offset k of parent position m.
        num_child_positions: Number of child positions, N.
    """

    child_MK: Tensor
    num_child_positions: int


def softmax_over_parents(logit: Tensor, none_of_the_above: bool, dim: int) -> Tensor:
    """Compute the shares of each child among the parents at one position, by a softmax.

    Args:
        logit: Routing logits, of any shape.
        none_of_the_above: Whether a share of each child may go to no parent. If so, the softmax has
            one more logit, 0, for this share, and the shares of the parents sum to less than 1.
        dim: Axis of the parents.

    Returns:
        Shares of the same shape as `logit`.
    """
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
    """Compute the shares of each child among its parents, by a softmax.

    Args:
        logit_BMLJ: Routing logits.
        fields: Receptive fields of the parent positions. None: each child is below one position
            only, and all values of `norm` mean "types". The last layer of the authors' code of EM
            routing divides children in the same way.
        norm: The set of parents of one softmax. "all": all types at all positions above the child.
            "types": all types at one position. "positions": one type at all positions above the
            child.
        none_of_the_above: Whether a share of each child may go to no parent. If so, the softmax has
            one more logit, 0, for this share.

    Returns:
        Shares [B, M, L, J].
    """
    if fields is None or norm == "types":
        return softmax_over_parents(logit_BMLJ, none_of_the_above, dim=3)
    # Subtract the largest logit of each softmax, without gradient, so that exp does not overflow.
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
    """Compute the sum (if `largest`, the maximum) of a quantity over the positions above a child.

    Returns:
        A tensor of the same shape as `part_BMLE`. The result of a child is repeated at all
        positions above the child.
    """
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
