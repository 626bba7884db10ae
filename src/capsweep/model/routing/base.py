"""What every routing variant is to the rest of the project.

A variant file reads top to bottom: docstring with paper, equations and complexity; `reference()`;
`fast()` where there is one; `IMPLS`; a module that owns the per-layer parameters.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import nn

from capsweep.model.votes import Routed


class RoutingFactory(Protocol):
    """Makes the routing of one layer: the partial that `conf/routing/*.yaml` instantiates to."""

    def __call__(self, *, num_children: int, num_parents: int, parent_pose: int) -> nn.Module: ...


def choose(impls: Mapping[str, Callable[..., Routed]], impl: str) -> Callable[..., Routed]:
    """The implementation named `impl`. Raises ValueError: nothing falls back silently."""
    if impl not in impls:
        raise ValueError(f"routing.impl must be one of {', '.join(impls)}, got {impl}")
    return impls[impl]
