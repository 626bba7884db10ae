"""Common parts of all routing variants: the result, the layer, and the coupling softmax.

Each variant is a file of this folder. The rest of the project makes a variant with `make_routing`
and calls it as a `RoutingLayer`.

A child is "below" a parent position if the child lies in the receptive field of that position. One
child position can be below several parent positions. The parents at all these positions then
compete for the child, so its shares are spread over the votes at all these positions.

Shape letters: B batch, I children, J parents or parent types, D parent pose, M parent positions, K
kernel offsets, N child positions, L = K I children below a parent position.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

AUTO = "auto"  # value of `routing.impl` that chooses an implementation
CALL_ARGUMENTS = ("votes", "with_trace")  # arguments that are not attributes of a layer


class Routed(NamedTuple):
    """The result of routing the votes of one layer.

    With M parent positions, the axis J of poses, activations and logits holds M J parents, position
    by position.

    Attributes:
        pose_BJD: Poses of the parents.
        act_BJ: Activations of the parents, in 0..1.
        coupling_BIJ: Couplings of the last iteration. None if the algorithm has no couplings, or if
            a child does not vote for every parent.
        trace: One dictionary per iteration, when a trace was requested. It holds at least
            "coupling" [B, M, L, J], the weights of the votes, and "pose" [B, M, J, D].
        logit_BJ: Input of the sigmoid or softmax that computed `act_BJ`, for losses that must not
            read a saturated activation. None for all other activations.
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
    """Make the result of a routing from its traced iterations.

    Args:
        trace: All iterations; the last one gives the poses and the couplings.
        with_trace: Whether the result keeps the trace.
        act_BMJ: Activations of the parents. None: the length of each pose.
        logit_BMJ: Logits of the activations, if the variant has them.

    Returns:
        The result, with the axes M and J of positions and parent types merged.
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
    """Concatenate the results of several groups of images along the batch axis.

    The results must not hold traces.
    """
    if len(parts) == 1:
        return parts[0]
    joined: Any = (None if one[0] is None else torch.cat(one) for one in zip(*parts, strict=True))
    return Routed(*joined)


class LayerSizes(NamedTuple):
    """The sizes of a layer, from which a routing allocates its parameters.

    Attributes:
        children: Number of children below one parent position, L.
        parents: Number of parent types at one position, J.
        child_pose: Numbers in the pose of a child, P.
        parent_pose: Numbers in the pose of a parent, D.
        of_classes: Whether the parents are the class capsules.
    """

    children: int
    parents: int
    child_pose: int
    parent_pose: int
    of_classes: bool = False


class RoutingFactory(Protocol):
    """A callable that makes the routing of one layer.

    Hydra makes the factory from `conf/routing/*.yaml` (`_partial_: true`). All options of the
    variant are then set, and only the sizes of the layer are missing.
    """

    def __call__(self, *, sizes: LayerSizes) -> nn.Module:
        """Make the routing of a layer with these sizes."""
        ...


class CouplingRule(NamedTuple):
    """The rule by which the children of a routing divide themselves among parents.

    Attributes:
        norm: The set of parents that share a child. "all": the parents at all positions above the
            child. "types": the parents at one position. "positions": the parents of one type at all
            these positions.
        none_of_the_above: Whether a share of each child may go to no parent.
    """

    norm: str = "all"
    none_of_the_above: bool = False


class RoutingLayer(nn.Module):
    """The routing of one layer: its learned parameters and its implementations.

    Each variant has a subclass, with one attribute for each argument that its implementations take
    besides the votes. The signature of the implementation `reference` gives the names of these
    attributes. A learned argument is an `nn.Parameter`. Only `reference` can record a trace or use
    couplings that are given with the votes.

    Args:
        impls: Implementations by name; `reference` must be one of them.
        impl: Name of the implementation to use, or `auto`.

    Attributes:
        used: Names of the implementations that have routed so far.
        coupling_rule: How a child divides itself among parents. None if the couplings of a child
            have no fixed sum.
        has_activations: Whether the variant computes activations of the parents. If not, all
            activations are 1.
        reads_activations: Whether the variant reads the activations of the children.
        votes_kind: The only class of votes that the variant can route. None: all classes.

    Raises:
        ValueError: If `impl` is neither `auto` nor a name in `impls`.
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
        self.argument_names = [name for name in names if name not in CALL_ARGUMENTS]

    def get_arguments(self) -> dict[str, Any]:
        """Return all arguments of the implementations except the votes, by name."""
        return {name: getattr(self, name) for name in self.argument_names}

    def choose_impl(self, votes: Any) -> str:
        """Return the name of the implementation that `auto` chooses for these votes.

        The choice may depend on the device of the votes.
        """
        return "fast" if "fast" in self.impls else "reference"

    def route(self, votes: Any, **arguments: Any) -> Routed:
        """Route the votes with the configured implementation, and add its name to `used`."""
        name = self.choose_impl(votes) if self.impl == AUTO else self.impl
        self.used.add(name)
        return self.impls[name](votes, **arguments)

    def forward(self, votes: Any, with_trace: bool = False) -> Routed:
        """Route the votes of the children of this layer.

        Args:
            votes: Votes of the children, such as `Votes` or `ConvolutionalVotes`.
            with_trace: Whether to record each iteration. A trace always comes from the reference.
        """
        if with_trace:
            return self.impls["reference"](votes, **self.get_arguments(), with_trace=True)
        return self.route(votes, **self.get_arguments())

    def form_parents(self, votes: Any, coupling_BMLJ: Tensor) -> Routed:
        """Compute the parents that result from given couplings, without routing.

        Args:
            votes: Votes of the children.
            coupling_BMLJ: Couplings that the variant uses in every iteration, instead of computing
                them.
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
        ValueError: If the variant routes only votes of another class.
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
    """Describe which implementation routed the votes of a network, such as `auto: triton`.

    Returns:
        The name of the implementation; "auto: " comes before the name if it was chosen
        automatically. None if the network has no routing layer.
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
        child_MK: The child position at kernel offset k of parent position m.
        num_child_positions: Number of child positions, N.
    """

    child_MK: Tensor
    num_child_positions: int


def softmax_over_parents(logit: Tensor, none_of_the_above: bool, dim: int) -> Tensor:
    """Compute the shares of each child among the parents at one position, by a softmax.

    Args:
        logit: Routing logits, of any shape.
        none_of_the_above: Whether a share of each child may go to no parent. The softmax then has
            one more slot for this share, with the logit 0. The shares for the parents then sum to
            less than 1.
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
    """Compute the shares of each child by a softmax of its logits over its parents.

    Args:
        logit_BMLJ: Routing logits.
        fields: Receptive fields of the parent positions. None: each child is below one position
            only.
        norm: The set of parents that share a child. "all": the parents of all types at all
            positions above the child. "types": the types at one position; each position has its own
            softmax. "positions": the positions above the child; each type has its own softmax. If
            there is only one position, "positions" means the same as "types", as in the last layer
            of the authors' code of EM routing.
        none_of_the_above: Whether a share of each child may go to no parent. The softmax then has
            one more slot for this share, with the logit 0.

    Returns:
        Shares [B, M, L, J].
    """
    if fields is None or norm == "types":
        return softmax_over_parents(logit_BMLJ, none_of_the_above, dim=3)
    # The largest logit of a child, without gradient, is subtracted before the exponential.
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
    """Sum a quantity over all parent positions above each child, or take its maximum.

    Returns:
        A tensor of the shape of `part_BMLE`. Each child has the same result at all positions above
        it.
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
