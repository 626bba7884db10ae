"""What all routing variants have in common, and how the rest of the project makes and calls them.

A variant file reads top to bottom: docstring with paper, equations and complexity; `reference()`;
`fast()` where there is one; `IMPLS`; a module that owns the per-layer parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from capsweep.model.votes import Routed


class RoutingFactory(Protocol):
    """Makes the routing of one layer: the partial that `conf/routing/*.yaml` instantiates to."""

    def __call__(self, *, num_children: int, num_parents: int, parent_pose: int) -> nn.Module: ...


def make_class_routing(
    routing: RoutingFactory, *, num_children: int, num_parents: int, parent_pose: int
) -> nn.Module:
    """The routing of a layer whose parents are the classes.

    A variant that starts with other values there has the method `use_class_values`.
    """
    layer = routing(num_children=num_children, num_parents=num_parents, parent_pose=parent_pose)
    use_class_values: Any = getattr(layer, "use_class_values", None)
    if use_class_values is not None:
        use_class_values()
    return layer


def count_equal_shares(routing: RoutingFactory, num_parents: int) -> int:
    """Among how many slots a child divides itself at first: the parents, and what else there is.

    Raises ValueError for a variant whose children do not divide themselves in equal shares.
    """
    probe = routing(num_children=1, num_parents=num_parents, parent_pose=1)
    count: Any = getattr(probe, "count_equal_shares", None)
    if count is None:
        raise ValueError(
            "model.primary.divided=true needs a routing with equal first couplings, such as "
            "routing=dynamic; set model.primary.divided=false"
        )
    return count(num_parents)


def check_num_iters(num_iters: int) -> None:
    """Raise ValueError for less than one iteration."""
    if num_iters < 1:
        raise ValueError(f"routing.num_iters must be >= 1, got {num_iters}")


def exclude_from_compiling(route: Callable[..., Routed]) -> Callable[..., Routed]:
    """`route` as torch.compile leaves it alone: it would unroll loops that depend on sizes."""
    if not torch.compiler.is_compiling():  # asked first, since disabling imports the compiler
        return route
    disabled: Any = torch.compiler.disable(route)
    return disabled


def choose_impl(impls: Mapping[str, Callable[..., Routed]], impl: str) -> Callable[..., Routed]:
    """The implementation named `impl`. Raises ValueError: nothing falls back silently."""
    if impl not in impls:
        raise ValueError(f"routing.impl must be one of {', '.join(impls)}, got {impl}")
    return impls[impl]
