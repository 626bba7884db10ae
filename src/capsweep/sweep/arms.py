"""The arms of a sweep file: what the cells of one share, the axes of its grid, when it is run.

Sections of the file are read strictly: no key is unknown, and none is missing.
"""

import difflib
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsweep.config import overrides as grammar
from capsweep.config.overrides import MOST_VALUES, Interval, Override
from capsweep.errors import ConfigError

CONTROL = "control"  # the arm without routing: one iteration, in which couplings are equal
ITERATIONS = "routing.num_iters"
ZIP = "zip"
Place = tuple[Override, ...]  # one value of each axis


@dataclass(frozen=True)
class Space:
    """groups: axes that move together, most groups hold one; the grid is the product of groups.

    intervals: of a search.
    """

    groups: tuple[tuple[Override, ...], ...] = ()
    intervals: tuple[Interval, ...] = ()

    @property
    def axes(self) -> tuple[Override, ...]:
        """Every axis that has a list of values."""
        return tuple(axis for group in self.groups for axis in group)

    @property
    def keys(self) -> list[str]:
        """Every key that varies."""
        return [axis.key for axis in (*self.axes, *self.intervals)]

    def set_axis(self, new: Override) -> "Space":
        """The space with this axis in the place of that of its key, or added."""
        intervals = tuple(old for old in self.intervals if old.key != new.key)
        if not any(old.key == new.key for old in self.axes):
            return Space((*self.groups, (new,)), intervals)
        groups = (tuple(new if old.key == new.key else old for old in g) for g in self.groups)
        return Space(tuple(groups), intervals)

    def couple_axes(self, keys: Sequence[str]) -> "Space":
        """The space in which the axes of these keys move together; the same where one is absent.

        Raises ConfigError for an axis that is coupled already.
        """
        own = {axis.key: group for group in self.groups for axis in group}
        if not own.keys() >= set(keys):
            return self
        for key in keys:
            if len(own[key]) > 1:
                raise ConfigError(f"{key} is coupled twice; name its axes together, once")
        together = tuple(own[key][0] for key in keys)
        rest = [group for group in self.groups if group[0].key not in keys[1:]]
        return replace(self, groups=tuple(together if g[0].key == keys[0] else g for g in rest))

    def iterate_groups(self) -> Iterator[list[Place]]:
        """The values that each group takes. Raises ConfigError unless coupled axes are as long."""
        for group in self.groups:
            lengths = {axis.key: len(axis.values) for axis in group}
            if len(set(lengths.values())) > 1:
                text = ", ".join(f"{key} has {count}" for key, count in lengths.items())
                raise ConfigError(f"zip: coupled axes need equally many values; {text}")
            yield list(zip(*(axis.split() for axis in group), strict=True))

    def count_places(self) -> int:
        """How many places the grid has."""
        return math.prod(len(group[0].values) for group in self.groups)


@dataclass(frozen=True)
class Arm:
    """One row family: overrides that hold in all its cells, and axes that span a grid.

    optional: an addition, run where ROUTING names its variant or ARMS its name. matched: training
    stops where the baseline's cell of the same column and seed is as good (`sweep/expand.py`).
    """

    name: str
    fixed: tuple[Override, ...]
    space: Space
    optional: bool = False
    matched: bool = False


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
    space = _read_space(f"{where}.space", content.get("space", {}), is_search)
    keys = [override.key for override in (*base, *fixed)] + space.keys
    if (key := find_repeated(keys)) is not None:
        raise ConfigError(f"{where}: {key} is set twice between base, fixed and space; keep one")
    if "seed" in keys:
        raise ConfigError(f"{where}: seed is not an axis of an arm; list it under seeds")
    if name == CONTROL and Override(ITERATIONS, (1,)) not in (*base, *fixed):
        raise ConfigError(
            f"{where}: {ITERATIONS} must be fixed to 1, in {where}.fixed: the control is no routing"
        )
    return Arm(name, fixed, space, **flags)


def _read_space(where: str, content: Any, is_search: bool) -> Space:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} must map keys to lists of values, got {content}")
    coupled = content.get(ZIP, [])
    coupled = coupled if isinstance(coupled, list) else [coupled]
    for group in coupled:
        if not isinstance(group, Mapping) or len(group) < 2:
            raise ConfigError(f"{where}.zip must map two keys or more to lists of equal length")
    if is_search and coupled:
        raise ConfigError(f"{where}.zip: a search has no grid; its axes cannot be coupled")
    alone = [_read_axis(where, str(k), v, is_search) for k, v in content.items() if k != ZIP]
    groups = [(axis,) for axis in alone if isinstance(axis, Override)]
    for group in coupled:
        groups.append(tuple(_read_axis(f"{where}.zip", str(k), v, False) for k, v in group.items()))
    return Space(tuple(groups), tuple(axis for axis in alone if isinstance(axis, Interval)))


def _read_axis(where: str, key: str, values: Any, is_search: bool) -> Any:
    """An Override; in a search it may be an Interval."""
    if isinstance(values, str):
        axis = grammar.parse_axis(f"{key}={values}")
        if isinstance(axis, Override):
            return check_axis(where, axis)
        if is_search:
            return axis
        raise ConfigError(
            f"{where}.{key}: an interval has no finite list of values; write them out, or set "
            "kind: search"
        )
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}.{key} must be a list of values")
    return check_axis(where, Override(grammar.with_dots(key), tuple(values)))


def check_axis(where: str, axis: Override) -> Override:
    """The axis itself. Raises ConfigError when it holds a value twice, or too many."""
    if len(axis.values) > MOST_VALUES:
        raise ConfigError(f"{where}: {axis.key} has more than {MOST_VALUES:,} values")
    if (value := find_repeated(axis.values)) is not None:
        raise ConfigError(f"{where}: {axis.key} has the value {value} twice; keep one")
    return axis


def find_repeated(values: Iterable[Any]) -> Any:
    """The first value that stood there before; None when each stands once."""
    known: set[Any] = set()
    for value in values:
        key = value if isinstance(value, Hashable) else repr(value)
        if key in known:
            return value
        known.add(key)
    return None


def check_keys(
    where: str, section: Any, required: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Raise ConfigError unless a section is a mapping that has the keys it must, and no others."""
    known = [*required, *optional]
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where} must be a mapping with the keys {', '.join(known)}")
    for key in section:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"have {', '.join(known)}"
            raise ConfigError(f"{where}: {key}: no such key; {hint}")
    for key in required:
        if key not in section:
            raise ConfigError(f"{where}: {key} is missing")


def read_overrides(where: str, texts: Any) -> tuple[Override, ...]:
    """Overrides of one run. Raises ConfigError naming the section, or a key set twice."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where} must be a list of overrides such as [model=capsnet]")
    return tuple(grammar.parse_single(texts))
