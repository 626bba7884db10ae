"""From a sweep to its cells: the grid of every arm, seeds innermost."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsweep.config import compose, metric_names
from capsweep.config.cell import LOGISTICS, Cell, get
from capsweep.config.overrides import render
from capsweep.errors import ConfigError
from capsweep.sweep import matched
from capsweep.sweep.arms import CONTROL, Arm
from capsweep.sweep.axes import check_coupled, count_places, dimensions
from capsweep.sweep.spec import Sweep

MOST_CELLS = 20_000


@dataclass(frozen=True)
class Point:
    """One place of the grid and its cell; `title` says which place, without the seed.

    waits: for the baseline's cell, whose accuracy its own is to stop at (`sweep/matched.py`).
    """

    arm: str
    title: str
    seed: int
    cell: Cell
    waits: bool = False

    @property
    def name(self) -> str:
        """The place, seed included."""
        return f"{self.title} · seed {self.seed}"

    def coordinate(self, key: str) -> Any:
        """The value at a table key: `arm`, a group (its option's name), or a key."""
        if key == "arm":
            return self.arm
        value = get(self.cell.config, key)
        return value.get("name") if isinstance(value, Mapping) else as_coordinate(value)


def as_coordinate(value: Any) -> Any:
    """A value of a key as a coordinate of the table: lists are their text."""
    return str(value) if isinstance(value, list) else value


def expand_sweep(sweep: Sweep) -> list[Point]:
    """Every place of the grid that is not excluded, composed and checked.

    Raises ConfigError naming the file, the arm and the key.
    """
    if sweep.search is not None:
        raise ConfigError(f"{sweep.path.name}: a search has no grid; it is run with make sweep")
    _check_size(sweep)
    found = [point for arm in sweep.arms for point in _arm_points(sweep, arm)]
    _check_typed(sweep, found)
    metric_names.check_metric(
        f"{sweep.path.name}: table.metric", sweep.metric, [point.cell.config for point in found]
    )
    decides = [key for key in sweep.pinned if key.partition(".")[0] not in LOGISTICS]
    if not (sweep.narrowed or decides or sweep.checked):
        _check_keys(sweep, found)
    if sweep.variants:
        found = _of_variants(sweep, found, sweep.variants)
    return _not_excluded(sweep, found)


def _check_size(sweep: Sweep) -> None:
    """Raise ConfigError for a grid that nobody means, before its cells are composed."""
    places = sum(count_places(arm.space) for arm in sweep.arms)
    if places * len(sweep.seeds) > MOST_CELLS:
        raise ConfigError(
            f"{sweep.path.name}: {places:,} places and {len(sweep.seeds):,} seeds are more than "
            f"{MOST_CELLS:,} cells; give axes fewer values, or ask a search"
        )


def _of_variants(sweep: Sweep, found: list[Point], variants: frozenset[str]) -> list[Point]:
    """Cells of these variants, of the baseline and of the control; `control` alone: of those two.

    An optional arm is an addition: where its variant is named, it is run beside all that is run
    anyway. An arm that does not route is no variant's: it is a control of all of them.
    """
    always = {sweep.baseline, CONTROL}
    named = {p.arm for p in found if p.coordinate("routing") in variants} - always
    if any(arm.optional and arm.name in named for arm in sweep.arms):
        always |= {arm.name for arm in sweep.arms if not arm.optional}
    kept = variants if variants == {CONTROL} else {None, *variants}
    _check_variants(sweep, found, variants)
    return [p for p in found if p.arm in always or p.coordinate("routing") in kept]


def _check_variants(sweep: Sweep, found: list[Point], variants: frozenset[str]) -> None:
    """Raise ConfigError for a variant that no arm has: nothing of it would run."""
    have = {str(p.coordinate("routing")) for p in found if p.coordinate("routing") is not None}
    if missing := sorted(variants - have - {CONTROL}):
        routed = f"has {', '.join(sorted(have))}" if have else "does not route"
        raise ConfigError(
            f"ROUTING={','.join(missing)}: no arm of {sweep.path.name} has it; the file {routed}"
        )


def check_told_apart(sweep: Sweep, points: Sequence[Point]) -> None:
    """Raise ConfigError for two cells of one seed in one field of the table, before they are run:
    what is typed may make two arms alike in all that the table shows.
    """
    cells: dict[tuple[Any, ...], str] = {}
    for point in points:
        field = (*map(point.coordinate, (*sweep.rows, *sweep.columns)), point.seed)
        other = cells.setdefault(field, point.cell.signature)
        if other != point.cell.signature:
            raise ConfigError(
                f"{sweep.path.name}: table: {point.title} and another setting fall into one field; "
                "add the key in which they differ to table.rows or table.columns"
            )


def _check_keys(sweep: Sweep, found: Sequence[Point]) -> None:
    named = {key for published in sweep.published.values for key in published} - {"value"}
    excluded = {key for exclusion in sweep.exclude for key in exclusion}
    for where, keys in (
        ("table", (*sweep.rows, *sweep.columns)),
        ("published.values", sorted(named)),
        ("exclude", sorted(excluded)),
    ):
        for key in keys:
            if all(point.coordinate(key) is None for point in found):
                raise ConfigError(f"{sweep.path.name}: {where}: {key} is no key of any cell")


def _check_typed(sweep: Sweep, found: Sequence[Point]) -> None:
    for key in sorted({key for exclusion in sweep.typed for key in exclusion}):
        if all(point.coordinate(key) is None for point in found):
            raise ConfigError(f"EXCLUDE: {key} is no key of any cell")


def _not_excluded(sweep: Sweep, found: list[Point]) -> list[Point]:
    arms = {point.arm for point in found}
    for exclusion in (*sweep.exclude, *sweep.typed):
        wanted = {key: as_coordinate(value) for key, value in exclusion.items()}
        kept = [p for p in found if any(p.coordinate(k) != v for k, v in wanted.items())]
        may_miss = sweep.narrowed or not sweep.pinned.isdisjoint(exclusion)
        may_miss |= sweep.checked and exclusion in sweep.exclude
        if len(kept) == len(found) and not may_miss:
            told = ", ".join(f"{key}={value}" for key, value in exclusion.items())
            raise ConfigError(f"{sweep.path.name}: exclude: no place has {told}")
        found = kept
    for arm in sorted(arms - {point.arm for point in found}):
        raise ConfigError(f"{sweep.path.name}: exclude: no place of arm {arm} is left")
    return found


def _arm_points(sweep: Sweep, arm: Arm) -> Iterator[Point]:
    fixed = [text for override in (*sweep.base, *arm.fixed) for text in override.texts()]
    waits = matched.waits(sweep, arm)
    if waits:
        fixed.append(matched.WAITING)
    try:
        check_coupled("zip", arm.space)
        for steps in itertools.product(*dimensions(arm.space)):
            place = [render(key, value) for step in steps for key, value in step]
            title = " · ".join([arm.name, *place])
            for seed in sweep.seeds:
                cell = compose.cell([*fixed, *place, render("seed", seed)])
                yield Point(arm.name, title, seed, cell, waits)
    except ConfigError as error:
        raise ConfigError(f"{sweep.path.name}: arm {arm.name}: {error}") from error


def point_at(sweep: Sweep, arm: Arm, place: Mapping[str, Any], seed: int) -> Point:
    """One place that a search chose. Raises ConfigError naming the key."""
    fixed = [text for override in (*sweep.base, *arm.fixed) for text in override.texts()]
    chosen = [render(key, value) for key, value in place.items()]
    cell = compose.cell([*fixed, *chosen, render("seed", seed)])
    return Point(arm.name, " · ".join([arm.name, *chosen]), seed, cell)
