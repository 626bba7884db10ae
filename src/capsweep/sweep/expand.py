"""From a sweep to its cells: the grid of every arm, seeds innermost.

Arms with `matched: true` stop where the baseline is as good. "Matrix capsules with EM routing",
section 5.1, and "Dynamic Routing Between Capsules", section 5.2, compare networks at equal
accuracy: the baseline trains first, then each cell of a matched arm until its validation accuracy
is that of the baseline's finished cell of the same column and seed. So its `stop_accuracy`, and
with it its signature, is known when that cell is finished, and not before.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsweep.config import compose, places, validation
from capsweep.config import overrides as grammar
from capsweep.config.cell import Cell, get, signature, without
from capsweep.config.overrides import Override, render
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.spec import ROUTING, Arm, Place, Sweep
from capsweep.tracking import content
from capsweep.tracking.content import Labels

MOST_CELLS = 20_000
ACCURACY = "stop_accuracy"
ACCURACY_DIGITS = 9  # far less than one example is of any data set
MATCHED_METRIC = "val/error"
# What a cell that waits for its accuracy is planned with; such a one is never run.
WAITING = Override(ACCURACY, (1.0,))


@dataclass(frozen=True)
class Point:
    """One place of the grid and its cell; `title` says which place, without the seed.

    waits: for the baseline's cell, whose accuracy its own is to stop at.
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
    """Return every place of the grid that is not excluded, with its seeds, composed and checked.

    Raises ConfigError naming the file, the arm and the key.
    """
    where = sweep.path.name
    if sweep.search is not None:
        raise ConfigError(f"{where}: a search has no grid; it is run with make sweep")
    _check_count(sweep)
    points = [point for arm in sweep.arms for point in _compose_arm(sweep, arm)]
    configs = [point.cell.config for point in points[:: len(sweep.seeds)]]
    validation.check_metric(f"{where}: table.metric", sweep.metric, configs)
    _check_keys(sweep)
    for place in sweep.excluded:
        if not any(_is_at(point, place) for point in points):
            text = " ".join(f"{key}={value}" for key, value in place.items())
            raise ConfigError(f"EXCLUDE='{text}': {where} has no such place")
    kept = [p for p in points if not any(_is_at(p, place) for place in sweep.excluded)]
    for arm in sorted({point.arm for point in points} - {point.arm for point in kept}):
        cure = "name the arm that is meant, such as EXCLUDE='arm=capsnet epochs=1'"
        raise ConfigError(f"{where}: EXCLUDE: no place of arm {arm} is left; {cure}")
    return kept


def _check_count(sweep: Sweep) -> None:
    """Raise ConfigError where the places of a grid are more cells than anybody means."""
    steps = (_list_steps(arm) for arm in sweep.arms)
    places = sum(math.prod(len(step[0].values) for step in each) for each in steps)
    if places * len(sweep.seeds) > MOST_CELLS:
        raise ConfigError(
            f"{sweep.path.name}: {places:,} places and {len(sweep.seeds):,} seeds are more than "
            f"{MOST_CELLS:,} cells; give axes fewer values, or ask a search"
        )


def _check_keys(sweep: Sweep) -> None:
    """Raise ConfigError where the table or published numbers speak of a key that no run has."""
    known = {*grammar.list_groups(), *grammar.list_known_keys(), "arm", "value", "members"}
    published = {key for numbers in sweep.published.values for key in numbers}
    for section, keys in {"table": {*sweep.rows, *sweep.columns}, "published": published}.items():
        for key in sorted(keys - known):
            raise ConfigError(f"{sweep.path.name}: {section}: {key} is no key of any cell")


def _is_at(point: Point, place: Mapping[str, Any]) -> bool:
    return all(point.coordinate(key) == as_coordinate(value) for key, value in place.items())


def check_distinct_fields(sweep: Sweep, points: Sequence[Point]) -> None:
    """Raise ConfigError for cells of one field of the table that differ in more than seed and
    matched accuracy, before they are run: what is typed may make two arms alike in all that the
    table shows.
    """
    cells: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    # Seeds of a place share the parts of their configuration: the same objects are compared once.
    parts = {tuple(id(v) for k, v in p.cell.science.items() if k != "seed"): p for p in points}
    for point in parts.values():
        field = tuple(map(point.coordinate, (*sweep.rows, *sweep.columns)))
        science = without(without(point.cell.science, "seed"), ACCURACY)
        known = cells.setdefault(field, science)
        if known != science and signature(known) != signature(science):
            raise ConfigError(
                f"{sweep.path.name}: table: {point.title} and another setting fall into one field; "
                "add the key in which they differ to table.rows or table.columns"
            )


def _compose_arm(sweep: Sweep, arm: Arm) -> Iterator[Point]:
    """Yield the points of an arm: each place is composed once, and gives the cells of all seeds."""
    waits = sweep.search is None and is_waiting(arm)
    try:
        for place in _list_places(sweep, arm) if sweep.search is None else _list_edges(arm):
            first = make_point(arm, place, sweep.seeds[0], waits)
            yield first
            for seed in sweep.seeds[1:]:
                yield replace(first, seed=seed, cell=first.cell.with_seed(seed))
    except ConfigError as error:
        raise ConfigError(f"{sweep.path.name}: arm {arm.name}: {error}") from error


def _list_places(sweep: Sweep, arm: Arm) -> list[Place]:
    """Return the places of an arm; where routings are an axis, each without the axes that its
    routing lacks, and equal ones once.

    Raises ConfigError for an axis that no routing of the arm has.
    """
    if ROUTING not in arm.keys:
        return list(_iterate_places(arm))
    places: dict[tuple[str, ...], Place] = {}
    for place in _iterate_places(arm):
        schema = compose.compose_files((*arm.fixed, *place)).schema
        kept = [
            choice
            for choice in place
            if not choice.key.startswith(f"{ROUTING}.") or choice.key in schema
        ]
        places.setdefault(tuple(choice.text for choice in kept), tuple(kept))
    unused = {*arm.keys} - {choice.key for place in places.values() for choice in place}
    for key in sorted(unused):
        if key in sweep.typed_keys or key not in grammar.list_known_keys():
            raise ConfigError(f"{key}: no routing of this arm has this key")
    return list(places.values())


def _list_steps(arm: Arm) -> list[list[Override]]:
    """Return axes that move together; most steps hold one. The grid is the product of the steps."""
    first = {key: keys[0] for keys in arm.coupled for key in keys}
    steps: dict[str, list[Override]] = {}
    for axis in arm.axes:
        steps.setdefault(first.get(axis.key, axis.key), []).append(axis)
    return list(steps.values())


def _iterate_places(arm: Arm) -> Iterator[Place]:
    """Yield the grid of an arm. Raises ConfigError unless coupled axes are of equal length."""
    steps: list[list[Place]] = []
    for step in _list_steps(arm):
        if len({len(axis.values) for axis in step}) > 1:
            keys = ", ".join(axis.key for axis in step)
            raise ConfigError(f"zip: coupled axes need equally many values: {keys}")
        steps.append(list(zip(*(axis.split() for axis in step), strict=True)))
    for place in itertools.product(*steps):
        yield tuple(itertools.chain(*place))


def make_point(arm: Arm, place: Place, seed: int, waits: bool = False) -> Point:
    """One place of an arm. Raises ConfigError naming the key."""
    fixed = [*arm.fixed, *([WAITING] if waits else [])]
    cell = compose.cell([*fixed, *place, Override("seed", (seed,))])
    title = " · ".join([arm.name, *(render(choice.key, choice.value) for choice in place)])
    return Point(arm.name, title, seed, cell, waits)


def is_waiting(arm: Arm) -> bool:
    """Whether the cells of an arm wait for the baseline: with a typed accuracy they do not."""
    given = {override.key for override in arm.fixed} | set(arm.keys)
    return arm.matched and ACCURACY not in given


def set_accuracies(sweep: Sweep, points: Sequence[Point]) -> list[Point]:
    """The points, in which each that waits has the accuracy of the baseline's cell, if finished.

    Raises ConfigError where the baseline has no such cell, or one that measures no accuracy.
    """
    if not any(point.waits for point in points):
        return list(points)
    ledger = Ledger(places.resolve(points[0].cell.config["places"]).ledger)
    return [_set_accuracy(sweep, p, points, ledger) if p.waits else p for p in points]


def check_rerun(sweep: Sweep, points: Sequence[Point]) -> None:
    """Raise ConfigError where the baseline's cells would run again after they were read."""
    rerun = points[0].cell.config["rerun"]
    if rerun != "never" and any(is_waiting(arm) for arm in sweep.arms):
        raise ConfigError(
            f"RERUN={rerun}: {sweep.path.name} has arms that are matched to finished cells of "
            f"{sweep.baseline}; remove those (capsweep ledger rm), and leave RERUN out"
        )


def _set_accuracy(sweep: Sweep, point: Point, points: Sequence[Point], ledger: Ledger) -> Point:
    where = f"{sweep.path.name}: arms.{point.arm}.matched: {point.name}"
    field = {key: point.coordinate(key) for key in sweep.columns} | {"seed": point.seed}
    baselines = (p for p in points if p.arm == sweep.baseline and _is_at(p, field))
    if (baseline := next(baselines, None)) is None:
        raise ConfigError(f"{where}: {sweep.baseline} has no cell of this column and seed")
    result = ledger.read_result(baseline.cell.signature)
    if result is None:
        return point
    if MATCHED_METRIC not in result["metrics"]:
        raise ConfigError(f"{where}: the cell of {baseline.name} has no {MATCHED_METRIC}")
    accuracy = round(1 - result["metrics"][MATCHED_METRIC], ACCURACY_DIGITS)
    kept = [text for text in point.cell.overrides if not text.startswith(f"{ACCURACY}=")]
    cell = compose.cell([*kept, Override(ACCURACY, (accuracy,))])
    return replace(point, cell=cell, waits=False)


def make_labels(sweep: Sweep, points: Sequence[Point]) -> dict[str, Labels]:
    """What the W&B runs of a sweep are called, by signature; different cells differ in name.

    A cell that several places of the grid share is called after the first.
    """
    weights = {content.reconstruction_weight(point.cell.config) for point in points}
    for arm in sweep.arms:  # of a search, whose trials come one by one
        weights |= {v for axis in arm.axes if axis.key == content.WEIGHT for v in axis.values}
        weights |= {i.high for i in arm.intervals if i.key == content.WEIGHT}
    runs: dict[str, Labels] = {}
    for point in points:
        config, signature = point.cell.config, point.cell.signature
        typed = [f"{key}={value}" for key, value in _list_settings(sweep, config)]
        place = [*point.title.split(content.SEPARATOR)[1:], *typed]
        name = content.run_name(config, point.arm, place, weights, signature)
        tags = content.run_tags(config, sweep.name, *sweep.words)
        run = Labels(sweep.name, point.arm, name, sweep.question, tags)
        runs.setdefault(signature, run)
    return runs


def _list_settings(sweep: Sweep, config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the typed keys of a sweep that are no coordinates, and their values in a cell."""
    axes = {key for arm in sweep.arms for key in arm.keys}
    pairs = [(key, get(config, key)) for key in sweep.typed_keys if key not in axes]
    return [(key, value) for key, value in pairs if isinstance(value, bool | int | float | str)]


def with_rows(sweep: Sweep) -> Sweep:
    """Return a search whose table has a row for each place: arm and axes are its coordinates."""
    axes = dict.fromkeys(key for arm in sweep.arms for key in arm.keys)
    return replace(sweep, rows=("arm", *axes))


def list_points(sweep: Sweep) -> list[Point]:
    """Return the points of a sweep; of a search those that it is checked by.

    Raises ConfigError naming the key.
    """
    return expand_sweep(sweep) if sweep.search is None else check_search(sweep)


def check_search(sweep: Sweep) -> list[Point]:
    """Return the places of a search in which every value of every arm stands once, and intervals at
    both ends: each can be run, and measures the metric.

    Raises ConfigError naming the key.
    """
    if len(sweep.seeds) != 1:
        raise ConfigError(f"{sweep.path.name}: seeds: a search takes one seed, got {sweep.seeds}")
    points = [point for arm in sweep.arms for point in _compose_arm(sweep, arm)]
    for point in points:
        where = f"{sweep.path.name}: {point.title}: search.metric"
        # Held out of training: a data set that is validated on test images chooses nothing.
        if not get(point.cell.config, "dataset.validation"):
            raise ConfigError(
                f"{where}: {sweep.metric} needs validation examples; set dataset.validation"
            )
        validation.check_metric(where, sweep.metric, [point.cell.config])
    check_distinct_fields(with_rows(sweep), points)
    return points


def _list_edges(arm: Arm) -> Iterator[Place]:
    """Yield the first place, then each other value of a list, and upper ends of intervals."""
    first = {choice.key: choice for choice in arm.first_place}
    yield tuple(first.values())
    for axis in arm.axes:
        for choice in axis.split()[1:]:
            yield tuple((first | {axis.key: choice}).values())
    for one in arm.intervals:
        yield tuple((first | {one.key: Override(one.key, (one.high,))}).values())
