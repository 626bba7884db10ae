"""The arms of a sweep: what the cells of one share, the axes of its grid, when it is run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.sweep.axes import Space, read_space
from capsweep.sweep.sections import check_keys, read_overrides

CONTROL = "control"  # the arm without routing: one iteration, in which couplings are equal
ITERATIONS = "routing.num_iters"


@dataclass(frozen=True)
class Arm:
    """One row family: overrides that hold in all its cells, and axes that span a grid.

    optional: an addition, run where ROUTING names its variant or ARMS its name. matched: training
    stops where the baseline's cell of the same column and seed is as good (`sweep/matched.py`).
    """

    name: str
    fixed: tuple[Override, ...]
    space: Space
    optional: bool = field(default=False, repr=False)  # a study is known by the repr of its arms
    matched: bool = field(default=False, repr=False)


def read_arm(name: str, content: Any, base: Sequence[Override], is_search: bool) -> Arm:
    """An arm of a file with this `base`. Raises ConfigError naming arm and key."""
    where = f"arms.{name}"
    content = {} if content is None else content
    # A search draws from all its arms, place by place: there is none to leave out.
    of_grids = () if is_search else ("exclude", "optional", "matched")
    check_keys(where, content, required=(), optional=("fixed", "space", *of_grids))
    flags = {flag: content.get(flag, False) for flag in ("optional", "matched")}
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{where}.{flag} must be true or false, got {value}")
    fixed = read_overrides(f"{where}.fixed", content.get("fixed", []))
    space = read_space(f"{where}.space", content.get("space", {}), is_search)
    _check_each_once(where, [override.key for override in (*base, *fixed)] + space.keys)
    if name == CONTROL and Override(ITERATIONS, (1,)) not in (*base, *fixed):
        raise ConfigError(
            f"{where}: {ITERATIONS} must be fixed to 1, in {where}.fixed: the control is no routing"
        )
    return Arm(name, fixed, space, **flags)


def _check_each_once(where: str, keys: Sequence[str]) -> None:
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(
                f"{where}: {key} is set twice between base, fixed and space; keep one"
            )
        if key == "seed":
            raise ConfigError(f"{where}: seed is not an axis of an arm; list it under seeds")
