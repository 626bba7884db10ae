"""The axes of an arm: lists or Hydra's sweep grammar, coupled axes, intervals, exclusions."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from capsweep.config import overrides as grammar
from capsweep.config.groups import with_dots
from capsweep.config.overrides import MOST_VALUES, Interval, Override
from capsweep.errors import ConfigError
from capsweep.sweep.sections import first_repeated

ZIP = "zip"


@dataclass(frozen=True)
class Space:
    """axes: their product is the grid, but for `coupled` keys, whose axes move together.

    intervals: of a search.
    """

    axes: tuple[Override, ...] = ()
    coupled: tuple[tuple[str, ...], ...] = ()
    intervals: tuple[Interval, ...] = ()

    @property
    def keys(self) -> list[str]:
        """Every key that varies."""
        return [axis.key for axis in (*self.axes, *self.intervals)]


def read_space(where: str, content: Any, intervals: bool) -> Space:
    """The `space` of an arm. intervals: whether they may stand there (in a search).

    Raises ConfigError naming the key.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} must map keys to lists of values, got {content}")
    plain = {str(key): values for key, values in content.items() if key != ZIP}
    found = [_axis(where, key, values, intervals) for key, values in plain.items()]
    axes = [axis for axis in found if isinstance(axis, Override)]
    coupled = []
    for group in _groups(where, content.get(ZIP, [])):
        together = [_axis(f"{where}.zip", str(k), v, intervals=False) for k, v in group.items()]
        axes += [axis for axis in together if isinstance(axis, Override)]
        coupled.append(tuple(axis.key for axis in together))
    if intervals and coupled:
        raise ConfigError(f"{where}.zip: a search has no grid; its axes cannot be coupled")
    space = Space(
        tuple(axes), tuple(coupled), tuple(axis for axis in found if isinstance(axis, Interval))
    )
    check_coupled(where, space)
    return space


def _groups(where: str, content: Any) -> list[Mapping[str, Any]]:
    groups = content if isinstance(content, list) else [content]
    for group in groups:
        if not isinstance(group, Mapping) or len(group) < 2:
            raise ConfigError(f"{where}.zip must map two keys or more to lists of equal length")
    return groups


def _axis(where: str, key: str, values: Any, intervals: bool) -> Override | Interval:
    if isinstance(values, str):
        axis = grammar.parse_any(f"{key}={values}")
        if isinstance(axis, Interval):
            if not intervals:
                raise ConfigError(
                    f"{where}.{key}: an interval has no finite list of values; write them out, or "
                    "set kind: search"
                )
            return axis
        return check_axis(where, axis)
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}.{key} must be a list of values")
    return check_axis(where, Override(with_dots(key), tuple(values)))


def check_axis(where: str, axis: Override) -> Override:
    """The axis itself. Raises ConfigError when it holds a value twice, or too many."""
    if len(axis.values) > MOST_VALUES:
        raise ConfigError(f"{where}: {axis.key} has more than {MOST_VALUES:,} values")
    if (value := first_repeated(axis.values)) is not None:
        raise ConfigError(f"{where}: {axis.key} has the value {value} twice; keep one")
    return axis


def check_coupled(where: str, space: Space) -> None:
    """Raise ConfigError unless coupled axes are there, and have as many values as each other."""
    by_key = {axis.key: axis for axis in space.axes}
    every = [key for keys in space.coupled for key in keys]
    for keys in space.coupled:
        for key in keys:
            if key not in by_key:
                raise ConfigError(f"{where}: {key} is coupled, and has no list of values there")
            if every.count(key) > 1:
                raise ConfigError(f"{where}: {key} is coupled twice; name its axes together, once")
        lengths = {key: len(by_key[key].values) for key in keys}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} has {count}" for key, count in lengths.items())
            raise ConfigError(f"{where}: coupled axes need equally many values; {told}")


def dimensions(space: Space) -> Iterator[list[tuple[tuple[str, Any], ...]]]:
    """The independent directions of the grid; each step sets one key, or several coupled ones."""
    by_key = {axis.key: axis for axis in space.axes}
    for axis in space.axes:
        keys = next((group for group in space.coupled if axis.key in group), (axis.key,))
        if axis.key == keys[0]:
            columns = [[(key, value) for value in by_key[key].values] for key in keys]
            yield list(zip(*columns, strict=True))


def count_places(space: Space) -> int:
    """How many places the grid has; of axes that move together the first one counts."""
    follow = {key for group in space.coupled for key in group[1:]}
    return math.prod(len(axis.values) for axis in space.axes if axis.key not in follow)


def read_exclusions(where: str, content: Any) -> tuple[Mapping[str, Any], ...]:
    """Places to leave out. Raises ConfigError naming the section."""
    whole = isinstance(content, list) and all(isinstance(e, Mapping) and e for e in content)
    if not whole:
        raise ConfigError(f"{where} must be a list of settings such as [{{routing.num_iters: 1}}]")
    return tuple({with_dots(str(key)): value for key, value in one.items()} for one in content)
