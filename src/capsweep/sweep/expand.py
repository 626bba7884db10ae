"""From a sweep to its cells: the grid of every arm, seeds innermost."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from capsweep.config import compose
from capsweep.config.cell import Cell, get
from capsweep.config.overrides import render
from capsweep.errors import ConfigError
from capsweep.sweep.spec import Arm, Sweep


@dataclass(frozen=True)
class Point:
    """One place of the grid and its cell; `title` says which place, without the seed."""

    arm: str
    title: str
    seed: int
    cell: Cell

    @property
    def name(self) -> str:
        """The place, seed included."""
        return f"{self.title} · seed {self.seed}"

    def coordinate(self, key: str) -> Any:
        """The value at a table key: `arm`, a group (its option's name), or a key of the science."""
        if key == "arm":
            return self.arm
        value = get(self.cell.science, key)
        return value.get("name") if isinstance(value, Mapping) else value


def points(sweep: Sweep, variants: frozenset[str] = frozenset()) -> list[Point]:
    """Every place of the grid, composed and checked.

    variants: keep cells of these routing variants, and the baseline; none: all.
    Raises ConfigError naming the file, the arm and the key.
    """
    found = [point for arm in sweep.arms for point in _arm_points(sweep, arm)]
    for key in (*sweep.rows, *sweep.columns):
        if all(point.coordinate(key) is None for point in found):
            raise ConfigError(f"{sweep.path.name}: table: {key} is no key of any cell")
    if variants:
        found = [p for p in found if p.arm == sweep.baseline or p.coordinate("routing") in variants]
    return found


def _arm_points(sweep: Sweep, arm: Arm) -> Iterator[Point]:
    fixed = [text for override in (*sweep.base, *arm.fixed) for text in override.texts()]
    for values in itertools.product(*(axis.values for axis in arm.space)):
        place = [render(axis.key, v) for axis, v in zip(arm.space, values, strict=True)]
        for seed in sweep.seeds:
            overrides = [*fixed, *place, render("seed", seed)]
            try:
                cell = compose.cell(overrides)
            except ConfigError as error:
                raise ConfigError(f"{sweep.path.name}: arm {arm.name}: {error}") from error
            yield Point(arm.name, " · ".join([arm.name, *place]), seed, cell)
