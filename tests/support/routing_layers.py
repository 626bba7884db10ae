"""Random layers to route: votes of every kind, and what the routing owns.

Shape letters: B batch, N child positions, I child types or children, J parent types, M parent
positions, K kernel offsets, R S rows and columns of a pose, P child pose, D parent pose.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from routing_variants import normal
from torch import Tensor

from capsweep.model import convolution
from capsweep.model.routing import Routed
from capsweep.model.votes import ConvolutionalVotes, LocalVotes, Votes

Draw = Callable[..., Tensor]
Route = Callable[..., Routed]


class Layer(NamedTuple):
    """Votes, the tensors that they are made of, and what the routing owns, by keyword."""

    votes: LocalVotes
    leaves: list[Tensor]
    own: dict[str, Tensor]

    def route(self, route: Route, num_iters: int, **options: Any) -> Routed:
        """By one implementation."""
        return route(self.votes, num_iters, **self.own, **options)

    def gradients(self, *outputs: Tensor | None) -> list[Tensor]:
        """By all leaves, of a function that every number of the outputs moves."""
        known = [output for output in outputs if output is not None]
        weights = [normal(1)(*output.shape).to(output) for output in known]
        value = torch.stack([(o * w).sum() for o, w in zip(known, weights, strict=True)]).sum()
        leaves = [*self.leaves, *self.own.values()]
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        return list(torch.autograd.grad(value, leaves, **options))

    def results(self, route: Route, num_iters: int, **options: Any) -> list[Tensor]:
        """Everything that is returned, and the gradients by all leaves."""
        routed = self.route(route, num_iters, **options)
        outputs = [routed.pose_BJD, routed.act_BJ, routed.coupling_BIJ, routed.logit_BJ]
        gradients = self.gradients(routed.pose_BJD, routed.act_BJ, routed.logit_BJ)
        return [*(tensor for tensor in outputs if tensor is not None), *gradients]


def draw_leaves(
    seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[Draw, Draw]:
    """What draws leaves of a shape: standard normal, and between 0 and 1."""
    draw = normal(seed)
    return (
        lambda *shape: draw(*shape).to(device, dtype).requires_grad_(),
        lambda *shape: draw(*shape).sigmoid().to(device, dtype).requires_grad_(),
    )


def own_parameters(variant: str, votes: LocalVotes, draw: Draw) -> dict[str, Tensor]:
    """What a layer of the variant owns, by keyword."""
    _, _, children, parents, pose = votes.form_local().shape
    shapes = {
        "dynamic": {"bias_JD": (parents, pose), "prior_LJ": (children, parents)},
        "em": {"beta_u_J": (parents,), "beta_a_J": (parents,)},
        "heinsen": {"beta_use_LJ": (children, parents), "beta_ignore_LJ": (children, parents)},
        "k_means": {},
        "sda": {"bias_JD": (parents, pose)},
        "variational_bayes": {"scale_J": (parents,), "shift_J": (parents,)},
    }
    return {name: draw(*shape) for name, shape in shapes[variant].items()}


def dense_layer(variant: str, size: tuple[int, int, int, int, int], **where: Any) -> Layer:
    """All children below all parents; B, I, J, P, D."""
    batch, children, parents, child_pose, parent_pose = size
    draw, draw_present = draw_leaves(**where)
    pose_BIP, activation_BI = draw(batch, children, child_pose), draw_present(batch, children)
    weight_IJDP = draw(children, parents, parent_pose, child_pose)
    votes = Votes(pose_BIP, weight_IJDP, activation_BI)
    own = own_parameters(variant, votes, draw)
    return Layer(votes, [pose_BIP, weight_IJDP, activation_BI], own)


def convolutional_layer(
    variant: str,
    grid: tuple[int, int],
    kernel: int,
    types: tuple[int, int],
    pose: tuple[int, int],
    *,
    batch: int = 3,
    stride: int = 2,
    is_class_layer: bool = False,
    **where: Any,
) -> Layer:
    """A grid of children below kernels; those of classes share their weights, and coordinates are
    added to their votes.
    """
    children, parents = types
    draw, draw_present = draw_leaves(**where)
    positions = convolution.PositionGrid(*grid)
    fields = convolution.list_fields(positions, kernel, stride)
    pose_BNIRS = draw(batch, positions.num_positions, children, *pose)
    activation_BNI = draw_present(batch, positions.num_positions, children)
    offsets = 1 if is_class_layer else kernel**2
    weight_KIJSS = draw(offsets, children, parents, pose[1], pose[1])
    offset_KD = draw(kernel**2, pose[0] * pose[1]).detach() if is_class_layer else None
    leaves = [pose_BNIRS, activation_BNI, weight_KIJSS]
    child_MK = torch.tensor(fields, device=pose_BNIRS.device)
    votes = ConvolutionalVotes(*leaves, child_MK, offset_KD)
    return Layer(votes, leaves, own_parameters(variant, votes, draw))


LAYERS: dict[str, Callable[..., Layer]] = {
    "convolutional": partial(convolutional_layer, grid=(5, 5), kernel=3, types=(3, 5), pose=(4, 4)),
    "vectors": partial(convolutional_layer, grid=(5, 5), kernel=3, types=(2, 3), pose=(1, 7)),
    "classes": partial(  # all children below one position
        convolutional_layer, grid=(3, 3), kernel=3, types=(3, 5), pose=(4, 4), is_class_layer=True
    ),
    "dense": partial(dense_layer, size=(3, 7, 5, 3, 6)),
}
