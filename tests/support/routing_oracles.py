"""Routing written out link by link: what the oracles of variants share. A link joins a child to a
parent above it. Every number and every pose is a tensor, so that autograd differentiates an oracle.

Shape letters: B batch, I children, J parents or parent types, P child pose, D parent pose; M parent
positions, K kernel offsets, N child positions, L = K I children below a parent position.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from routing_variants import assert_same, normal
from torch import Tensor, nn

from capsweep.model.routing import LayerSizes, Routed
from capsweep.model.votes import ConvolutionalVotes, LocalVotes, Votes

# Batch, children, parents, pose of a child, pose of a parent.
Size = tuple[int, int, int, int, int]
AWKWARD: list[Size] = [(1, 1, 1, 1, 1), (2, 5, 3, 4, 2), (3, 1, 7, 2, 5), (2, 11, 1, 3, 1)]
Child = tuple[int, int]  # position, type
Parent = tuple[int, int]  # position, type


class Link(NamedTuple):
    """local: the place of the child among those below the parent."""

    child: Child
    parent: Parent
    local: int


class Image(NamedTuple):
    """What one image of a batch brings."""

    vote: Mapping[Link, Tensor]
    pose: Mapping[Child, Tensor]
    activation: Mapping[Child, Tensor]


class RoutedImage(NamedTuple):
    """The routing of one image."""

    coupling: Mapping[Link, Tensor]
    pose: Mapping[Parent, Tensor]
    activation: Mapping[Parent, Tensor]


def list_images(votes: LocalVotes) -> list[Image]:
    """The votes, one by one."""
    types = 1
    if isinstance(votes, Votes):
        children, parents = votes.weight_IJDP.shape[:2]
        links = [Link((0, i), (0, j), i) for i, j in np.ndindex(children, parents)]
        poses_BNIP, active_BNI = votes.pose_BIP[:, None], votes.activation_BI[:, None]
    else:
        (positions, offsets), types = votes.child_MK.shape, votes.pose_BNIRS.shape[2]
        links = [
            Link((int(votes.child_MK[m, k]), i), (m, j), k * types + i)
            for m, k, i, j in np.ndindex(positions, offsets, types, votes.weight_KIJSS.shape[2])
        ]
        poses_BNIP, active_BNI = votes.pose_BNIRS, votes.activation_BNI

    def vote(pose: Tensor, link: Link) -> Tensor:
        (_, i), j = link.child, link.parent[1]
        if isinstance(votes, Votes):
            return votes.weight_IJDP[i, j] @ pose
        return (pose @ votes.weight_KIJSS[link.local // types, i, j]).flatten()

    images = []
    for poses_NIP, active_NI in zip(poses_BNIP, active_BNI, strict=True):
        pose = {(n, i): poses_NIP[n, i] for n, i in np.ndindex(*active_NI.shape)}
        flat = {child: one.flatten() for child, one in pose.items()}
        activation = {child: active_NI[child] for child in pose}
        images.append(Image({x: vote(pose[x.child], x) for x in links}, flat, activation))
    return images


def softmax(logits: Tensor) -> Tensor:
    """Of one child."""
    return logits.softmax(dim=0)


def divide(
    logit: Mapping[Link, Tensor], norm: str, share: Callable[[Tensor], Tensor] = softmax
) -> dict[Link, Tensor]:
    """Each child among all parents above it; by types, among those of a position at each; by
    positions, among those of a type, but where there is one position, by types.
    """
    rivals = defaultdict(list)
    has_one_position = len({link.parent[0] for link in logit}) == 1
    for link in logit:
        position, kind = link.parent
        among = {"all": None, "types": position, "positions": None if has_one_position else kind}
        rivals[link.child, among[norm]].append(link)
    return {
        link: coupling
        for links in rivals.values()
        for link, coupling in zip(links, share(torch.stack([logit[x] for x in links])), strict=True)
    }


def add_up(numbers: Mapping[Link, Tensor]) -> dict[Parent, Tensor]:
    """The sum over the children of each parent."""
    total: dict[Parent, Any] = defaultdict(float)
    for link, number in numbers.items():
        total[link.parent] = total[link.parent] + number
    return dict(total)


def add_votes(image: Image, weight: Mapping[Link, Tensor]) -> dict[Parent, Tensor]:
    """The weighted sum of the votes for each parent."""
    return add_up({link: weight[link] * vote for link, vote in image.vote.items()})


def zeros(image: Image) -> dict[Link, Tensor]:
    """A logit of each link."""
    return {link: torch.zeros((), dtype=vote.dtype) for link, vote in image.vote.items()}


def squash(s: Tensor) -> Tensor:
    """Equation 1 of dynamic routing."""
    square = (s * s).sum()
    return square / (1 + square) * s / square.sqrt()


def shrink(image: Image, coupling: Mapping[Link, Tensor], bias_JD: Tensor | None) -> RoutedImage:
    """Squashed sums of votes, as active as they are long."""
    sums = add_votes(image, coupling)
    pose = {p: squash(s if bias_JD is None else s + bias_JD[p[1]]) for p, s in sums.items()}
    return RoutedImage(coupling, pose, {p: (v * v).sum().sqrt() for p, v in pose.items()})


def assert_follows(
    route: Callable[..., Routed],
    oracle: Callable[..., RoutedImage],
    votes: LocalVotes,
    *own: Tensor,
    with_gradients: bool = True,
) -> None:
    """`route(votes, *own)`, with a trace, is what `oracle(image, *own)` finds in each image: poses,
    activations, couplings, and the gradients by everything that is given.
    """
    leaves = [*leaves_of(votes), *(tensor.requires_grad_() for tensor in own)]
    routed = route(votes, *own)
    images = [oracle(image, *own) for image in list_images(votes)]
    expected = [torch.stack([_join(one[part]) for one in images]) for part in range(3)]
    outputs = [
        output.expand(len(images), *output.shape[1:]).reshape(other.shape)
        for output, other in zip(
            (routed.trace[-1]["coupling"], routed.pose_BJD, routed.act_BJ), expected, strict=True
        )
    ]
    for output, other in zip(outputs, expected, strict=True):
        assert_same(output, other)
    if with_gradients:
        gradients = [differentiate(tensors, leaves) for tensors in (outputs, expected)]
        for one, other in zip(*gradients, strict=True):
            assert_same(one, other)


def assert_layer_follows(
    layer: nn.Module, oracle: Callable[..., RoutedImage], votes: LocalVotes
) -> None:
    """As `assert_follows`, of a layer's module whose parameters are drawn, in their order."""
    layer, draw = layer.double(), normal(1)
    own = {name: draw(*tensor.shape) for name, tensor in layer.named_parameters()}

    def route(votes: LocalVotes, *drawn: Tensor) -> Routed:
        named = dict(zip(own, drawn, strict=True))
        return torch.func.functional_call(layer, named, (votes, True))

    assert_follows(route, oracle, votes, *own.values())


def leaves_of(votes: LocalVotes) -> list[Tensor]:
    """The tensors that votes are made of, made to ask for gradients."""
    given = [getattr(votes, field.name) for field in fields(votes)]
    return [x.requires_grad_() for x in given if x is not None and x.is_floating_point()]


def differentiate(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A function that every number of the outputs moves."""
    draw = normal(1)
    value = torch.stack([(output * draw(*output.shape)).sum() for output in outputs]).sum()
    return torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)


def _join(values: Mapping[Any, Tensor]) -> Tensor:
    return torch.stack([values[key] for key in sorted(values, key=_place)])


def _place(key: Any) -> tuple[int, ...]:
    """In the order of tensors: of a link M L J, of a parent M J."""
    return (key.parent[0], key.local, key.parent[1]) if isinstance(key, Link) else key


Shape = Size | None
every_shape = pytest.mark.parametrize("shape", [*AWKWARD, (1, 4, 1, 2, 3), None], ids=str)
any_size = st.tuples(*[st.integers(1, 5)] * 5)
any_seed = st.integers(0, 2**32 - 1)


def draw_votes(shape: Shape, seed: int = 0, scale: float = 1.0) -> Any:
    """Linear votes of B, I, J, P, D; None: matrices of 3x2 of two types at five positions in a row,
    the last of which is without parents, below three positions of three types.
    """
    draw = normal(seed)
    if shape is None:
        below_MK = torch.tensor([[0, 1], [1, 2], [2, 3]])
        active_BNI = draw(2, 5, 2).sigmoid()
        return ConvolutionalVotes(
            scale * draw(2, 5, 2, 3, 2), active_BNI, draw(2, 2, 3, 2, 2), below_MK
        )
    batch, children, parents, child_pose, parent_pose = shape
    weight_IJDP = draw(children, parents, parent_pose, child_pose)
    active_BI = draw(batch, children).sigmoid()
    return Votes(scale * draw(batch, children, child_pose), weight_IJDP, active_BI)


def sizes_of(votes: LocalVotes) -> LayerSizes:
    """Of the layer that routes them."""
    _, _, children, parents, pose = votes.form_local().shape
    return LayerSizes(children, parents, votes.local_poses().shape[3], pose)


def cast(votes_BIJD: Tensor, activation_BI: Tensor | None = None) -> Votes:
    """Linear votes that are these: the pose of a child is what it says to all parents."""
    batch, children, parents, pose = votes_BIJD.shape
    selecting_JDP = torch.eye(parents * pose, dtype=votes_BIJD.dtype).unflatten(0, (parents, pose))
    if activation_BI is None:
        activation_BI = votes_BIJD.new_ones(batch, children)
    return Votes(votes_BIJD.flatten(2), selecting_JDP.repeat(children, 1, 1, 1), activation_BI)
