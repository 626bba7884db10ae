"""The arms of a sweep: what the cells of one share, and the axes of its grid."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from capsweep.config.overrides import Interval, Override
from capsweep.errors import ConfigError

ROUTING = "routing"  # the group of routing variants; keys of a variant begin with it and a dot
Place = tuple[Override, ...]  # one value of each axis


@dataclass(frozen=True)
class Space:
    """The axes of an arm, which span its grid; axes whose keys are `coupled` move together.

    intervals: of a search.
    """

    axes: tuple[Override, ...] = ()
    intervals: tuple[Interval, ...] = ()
    coupled: tuple[tuple[str, ...], ...] = ()

    @property
    def keys(self) -> list[str]:
        """Every key that varies."""
        return [axis.key for axis in (*self.axes, *self.intervals)]

    def first_place(self) -> Place:
        """The first value of each axis, and the lower end of each interval."""
        lows = ((one.key, int(one.low) if one.integer else one.low) for one in self.intervals)
        firsts = ((axis.key, axis.value) for axis in self.axes)
        return tuple(Override(key, (value,)) for key, value in (*firsts, *lows))

    def drop_axes(self, is_dropped: Callable[[str], bool]) -> "Space":
        """The space without the axes of some keys."""
        axes = tuple(axis for axis in self.axes if not is_dropped(axis.key))
        rests = (tuple(key for key in keys if not is_dropped(key)) for keys in self.coupled)
        return replace(self, axes=axes, coupled=tuple(keys for keys in rests if len(keys) > 1))

    def set_axis(self, new: Override) -> "Space":
        """The space with this axis in the place of that of its key, or added."""
        axes = {axis.key: axis for axis in self.axes} | {new.key: new}
        intervals = tuple(old for old in self.intervals if old.key != new.key)
        return replace(self, axes=tuple(axes.values()), intervals=intervals)

    def couple_axes(self, keys: tuple[str, ...]) -> "Space":
        """The space in which the axes of these keys move together; the same where one is absent.

        Raises ConfigError for an axis that is coupled already.
        """
        if not {axis.key for axis in self.axes} >= set(keys):
            return self
        for key in itertools.chain(*self.coupled):
            if key in keys:
                raise ConfigError(f"{key} is coupled twice; name its axes together, once")
        return replace(self, coupled=(*self.coupled, keys))

    def list_groups(self) -> list[list[Override]]:
        """Axes that move together; most groups hold one. The grid is the product of groups."""
        first = {key: keys[0] for keys in self.coupled for key in keys}
        groups: dict[str, list[Override]] = {}
        for axis in self.axes:
            groups.setdefault(first.get(axis.key, axis.key), []).append(axis)
        return list(groups.values())

    def count_places(self) -> int:
        """How many places the grid has."""
        return math.prod(len(group[0].values) for group in self.list_groups())

    def iterate_places(self) -> Iterator[Place]:
        """The grid. Raises ConfigError unless coupled axes are of equal length."""
        steps: list[list[Place]] = []
        for group in self.list_groups():
            if len({len(axis.values) for axis in group}) > 1:
                keys = ", ".join(axis.key for axis in group)
                raise ConfigError(f"zip: coupled axes need equally many values: {keys}")
            steps.append(list(zip(*(axis.split() for axis in group), strict=True)))
        for place in itertools.product(*steps):
            yield tuple(itertools.chain(*place))


@dataclass(frozen=True)
class Arm:
    """One family of rows of a table."""

    name: str
    fixed: tuple[Override, ...]  # what holds in all its cells
    space: Space  # axes that span its grid
    matched: bool = False  # training stops where the baseline is as good (`sweep/expand.py`)

    def set_override(self, override: Override) -> "Arm":
        """Return the arm with this override in the place of the axis or value of its key, or added.

        Beside an axis over routings a key of a routing is an axis too, of those that have it.
        """
        fixed = tuple(old for old in self.fixed if old.key != override.key)
        is_axis = len(override.values) > 1 or override.key in self.space.keys
        if is_axis or (override.key.startswith(f"{ROUTING}.") and ROUTING in self.space.keys):
            return replace(self, fixed=fixed, space=self.space.set_axis(override))
        return replace(self, fixed=(*fixed, override))

    def set_routings(self, names: tuple[str, ...]) -> "Arm":
        """Return the arm with an axis over routings; what it fixes of one becomes an axis too."""
        fixed = [old for old in self.fixed if old.key.partition(".")[0] != ROUTING]
        moved = [old for old in self.fixed if old.key.startswith(f"{ROUTING}.")]
        others = (axis for axis in self.space.axes if axis.key != ROUTING)
        axes = (Override(ROUTING, names), *moved, *others)
        return replace(self, fixed=tuple(fixed), space=replace(self.space, axes=axes))
