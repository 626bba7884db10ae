"""What every routing variant is to the rest of the project.

A variant file reads top to bottom: docstring with paper, equations and complexity; `reference()`;
`fast()` where there is one; `IMPLS`; a module that owns the per-layer parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from capsweep.model.votes import Routed


class RoutingFactory(Protocol):
    """Makes the routing of one layer: the partial that `conf/routing/*.yaml` instantiates to."""

    def __call__(self, *, num_children: int, num_parents: int, parent_pose: int) -> nn.Module: ...


@runtime_checkable
class BeginsOtherwiseLast(Protocol):
    """A routing that begins with other values where the parents are the classes."""

    def become_last(self) -> None:
        """Take those values."""
        ...


def of_classes(
    routing: RoutingFactory, *, num_children: int, num_parents: int, parent_pose: int
) -> nn.Module:
    """The routing of a layer whose parents are the classes."""
    made = routing(num_children=num_children, num_parents=num_parents, parent_pose=parent_pose)
    if isinstance(made, BeginsOtherwiseLast):
        made.become_last()
    return made


def shares(routing: RoutingFactory, num_parents: int) -> int:
    """Among how many slots a child divides itself at first: the parents, and what else there is.

    Raises ValueError for a variant whose children do not divide themselves in equal shares.
    """
    probe = routing(num_children=1, num_parents=num_parents, parent_pose=1)
    divided: Any = getattr(probe, "shares", None)
    if divided is None:
        raise ValueError(
            "model.primary.divided=true needs a routing with equal first couplings, such as "
            "routing=dynamic; set model.primary.divided=false"
        )
    return divided(num_parents)


def uncompiled(route: Callable[..., Routed]) -> Callable[..., Routed]:
    """`route` as torch.compile leaves it alone: it would unroll loops that depend on sizes."""
    if not torch.compiler.is_compiling():  # asked, since disabling imports the compiler
        return route
    disabled: Any = torch.compiler.disable(route)
    return disabled


def choose(impls: Mapping[str, Callable[..., Routed]], impl: str) -> Callable[..., Routed]:
    """The implementation named `impl`. Raises ValueError: nothing falls back silently."""
    if impl not in impls:
        raise ValueError(f"routing.impl must be one of {', '.join(impls)}, got {impl}")
    return impls[impl]
