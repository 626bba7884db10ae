"""The expansion of a sweep into its cells: arm by arm, place by place, seed by seed.

The cells of an arm with `matched: true` train until they are as accurate as the baseline. "Matrix
capsules with EM routing", section 5.1, and "Dynamic Routing Between Capsules", section 5.2, compare
networks at equal accuracy in this way. The baseline trains first. Each cell of a matched arm waits
for the cell of the baseline that has the same seed and is in the same column of the table. The
matched cell trains until it reaches the validation accuracy of that cell, or to its last epoch. So
the `stop_accuracy` and the signature of a matched cell are known only when its cell of the baseline
is finished.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsweep.config import compose, places, validation
from capsweep.config import overrides as grammar
from capsweep.config.cell import Cell, get, hash_science, remove_key
from capsweep.config.overrides import Override, render
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.spec import ROUTING, Arm, Place, Sweep
from capsweep.tracking import content

MOST_CELLS = 20_000
ACCURACY = "stop_accuracy"
ACCURACY_DIGITS = 9  # decimals of a stop_accuracy; one example changes an accuracy by far more
MATCHED_METRIC = "val/error"
# The stop_accuracy that a plan sets in cells that wait for the baseline. No cell runs with it.
WAITING = Override(ACCURACY, (1.0,))


@dataclass(frozen=True)
class Point:
    """A place of the grid with one seed, and the cell of this place and seed."""

    arm: str  # the name of its arm
    title: str  # the place without the seed, such as `capsnet · epochs=1`
    seed: int  # the seed of the cell
    cell: Cell  # the composed cell
    waits: bool = False  # whether its stop_accuracy is unknown until the baseline finishes

    @property
    def name(self) -> str:
        """The title and the seed, such as `capsnet · epochs=1 · seed 0`."""
        return f"{self.title} · seed {self.seed}"

    def coordinate(self, key: str) -> Any:
        """Return the value that this point has for a key of the table.

        The value for `arm` is the name of the arm. The value for a group of the configuration, such
        as `dataset`, is the name of the chosen option.
        """
        if key == "arm":
            return self.arm
        value = get(self.cell.config, key)
        return value.get("name") if isinstance(value, Mapping) else as_coordinate(value)


def as_coordinate(value: Any) -> Any:
    """Convert a list to text, and return any other value unchanged.

    A coordinate of a table must be hashable, and a list is not hashable.
    """
    return str(value) if isinstance(value, list) else value


def expand_sweep(sweep: Sweep) -> list[Point]:
    """Return the points of a sweep: one for each seed of each place that is not excluded.

    The cell of each point is composed and checked.

    Raises:
        ConfigError: The sweep is a search, or has more than MOST_CELLS cells. Or a cell, a key of
            the table, a published number or EXCLUDE is not valid. The message names the file or
            the word.
    """
    where = sweep.path.name
    if sweep.search is not None:
        raise ConfigError(f"{where}: a search has no grid; run it with make sweep")
    _check_count(sweep)
    points = [point for arm in sweep.arms for point in _compose_arm(sweep, arm)]
    configs = [point.cell.config for point in points[:: len(sweep.seeds)]]
    validation.check_metric(f"{where}: table.metric", sweep.metric, configs)
    _check_keys(sweep)
    for place in sweep.excluded:
        if not any(_is_at(point, place) for point in points):
            text = " ".join(f"{key}={value}" for key, value in place.items())
            raise ConfigError(f"EXCLUDE='{text}': no cell of {where} has these values")
    kept = [p for p in points if not any(_is_at(p, place) for place in sweep.excluded)]
    names = [*dict.fromkeys(point.arm for point in kept)] or ["NAME"]
    for arm in sorted({point.arm for point in points} - {*names}):
        cure = f"to leave out an arm, type ARMS={','.join(names)}"
        cure += f" BASELINE={names[0]}" * (sweep.baseline not in names)
        cure += "; to exclude cells of one arm, name it: EXCLUDE='arm=capsnet epochs=1'"
        raise ConfigError(f"{where}: EXCLUDE leaves no cell of arm {arm}; {cure}")
    return kept


def _check_count(sweep: Sweep) -> None:
    """Raise ConfigError if a sweep has more than MOST_CELLS cells."""
    steps = (_list_steps(arm) for arm in sweep.arms)
    places = sum(math.prod(len(step[0].values) for step in each) for each in steps)
    if places * len(sweep.seeds) > MOST_CELLS:
        raise ConfigError(
            f"{sweep.path.name}: {places:,} places with {len(sweep.seeds):,} seeds each are more "
            f"than {MOST_CELLS:,} cells; give axes fewer values, or use a search (kind: search)"
        )


def _check_keys(sweep: Sweep) -> None:
    """Raise ConfigError if the table or the published numbers name a key that no cell has."""
    known = {*grammar.list_groups(), *grammar.list_known_keys(), "arm", "value", "members"}
    published = {key for numbers in sweep.published.values for key in numbers}
    for section, keys in {"table": {*sweep.rows, *sweep.columns}, "published": published}.items():
        for key in sorted(keys - known):
            raise ConfigError(f"{sweep.path.name}: {section}: no cell has the key {key}")


def _is_at(point: Point, place: Mapping[str, Any]) -> bool:
    return all(point.coordinate(key) == as_coordinate(value) for key, value in place.items())


def check_distinct_fields(sweep: Sweep, points: Sequence[Point]) -> None:
    """Check that cells in the same field of the table differ only in `seed` and `stop_accuracy`.

    Typed words can break this rule: they can make two arms equal in every key that the table shows.
    So the rule is checked before cells run.

    Raises:
        ConfigError: Two cells in the same field differ in another key.
    """
    cells: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    # Points of the same place share their configuration objects. One point of each place is enough.
    parts = {tuple(id(v) for k, v in p.cell.science.items() if k != "seed"): p for p in points}
    for point in parts.values():
        field = tuple(map(point.coordinate, (*sweep.rows, *sweep.columns)))
        science = remove_key(remove_key(point.cell.science, "seed"), ACCURACY)
        known = cells.setdefault(field, science)
        if known != science and hash_science(known) != hash_science(science):
            raise ConfigError(
                f"{sweep.path.name}: table: {point.title} and another setting share one field of "
                "the table; add the key in which they differ to table.rows or table.columns"
            )


def _compose_arm(sweep: Sweep, arm: Arm) -> Iterator[Point]:
    """Compose each place of an arm once, and yield one point for each seed of the place.

    For a search, the places are only those that `_list_edges` yields.
    """
    waits = sweep.search is None and is_waiting(arm)
    try:
        for place in _list_places(sweep, arm) if sweep.search is None else _list_edges(arm):
            first = make_point(arm, place, sweep.seeds[0], waits)
            yield first
            for seed in sweep.seeds[1:]:
                yield replace(first, seed=seed, cell=first.cell.with_seed(seed))
    except ConfigError as error:
        typed = f" with {' '.join(sweep.words)}" if sweep.words else ""
        raise ConfigError(f"{sweep.path.name}{typed}: arm {arm.name}: {error}") from error


def _list_places(sweep: Sweep, arm: Arm) -> list[Place]:
    """Return the distinct places of an arm.

    If the arm has an axis over routings, each place loses the keys of axes that its own routing
    does not have.

    Raises:
        ConfigError: No routing of the arm has the key of an axis, and the key was typed or is
            unknown to all routings.
    """
    if ROUTING not in arm.keys:
        return list(_iterate_places(arm))
    places: dict[tuple[str, ...], Place] = {}
    for place in _iterate_places(arm):
        schema = compose.compose_files((*arm.fixed, *place)).schema
        kept = [
            choice
            for choice in place
            if choice.key in schema or not choice.key.startswith(f"{ROUTING}.")
        ]
        places.setdefault(tuple(choice.text for choice in kept), tuple(kept))
    unused = {*arm.keys} - {choice.key for place in places.values() for choice in place}
    for key in sorted(unused):
        if key in sweep.typed_keys or key not in grammar.list_known_keys():
            raise ConfigError(f"{key}: no routing of this arm has this key")
    return list(places.values())


def _list_steps(arm: Arm) -> list[list[Override]]:
    """Return the factors of an arm's grid, each of them a list of axes.

    Coupled axes are in one list, because their values are paired. Every other axis is alone in its
    list. The grid is the product of the factors.
    """
    first = {key: keys[0] for keys in arm.coupled for key in keys}
    steps: dict[str, list[Override]] = {}
    for axis in arm.axes:
        steps.setdefault(first.get(axis.key, axis.key), []).append(axis)
    return list(steps.values())


def _iterate_places(arm: Arm) -> Iterator[Place]:
    """Yield the places of an arm's grid.

    Raises:
        ConfigError: Coupled axes differ in their number of values.
    """
    steps: list[list[Place]] = []
    for step in _list_steps(arm):
        if len({len(axis.values) for axis in step}) > 1:
            keys = ", ".join(axis.key for axis in step)
            raise ConfigError(
                f"zip: coupled axes need the same number of values: {keys}; type a list for each, "
                "or leave out cells with EXCLUDE"
            )
        steps.append(list(zip(*(axis.split() for axis in step), strict=True)))
    for place in itertools.product(*steps):
        yield tuple(itertools.chain(*place))


def make_point(arm: Arm, place: Place, seed: int, waits: bool = False) -> Point:
    """Compose the cell of a place and a seed, and return it as a point.

    Args:
        arm: The arm.
        place: One value of each axis.
        seed: The seed of the cell.
        waits: Whether the cell waits for the accuracy of a cell of the baseline.

    Raises:
        ConfigError: The cell is not valid; the message names the key.
    """
    fixed = [*arm.fixed, *([WAITING] if waits else [])]
    cell = compose.cell([*fixed, *place, Override("seed", (seed,))])
    title = " · ".join([arm.name, *(render(choice.key, choice.value) for choice in place)])
    return Point(arm.name, title, seed, cell, waits)


def is_waiting(arm: Arm) -> bool:
    """Return whether the cells of an arm wait for the accuracy of the baseline.

    They wait if the arm is matched, and neither the file nor a typed word sets `stop_accuracy`.
    """
    given = {override.key for override in arm.fixed} | set(arm.keys)
    return arm.matched and ACCURACY not in given


def set_accuracies(sweep: Sweep, points: Sequence[Point]) -> list[Point]:
    """Set the stop_accuracy of waiting points, and return all points.

    A waiting point stays unchanged as long as its cell of the baseline is not finished.

    Raises:
        ConfigError: A waiting point has no cell of the baseline, or that cell has no accuracy.
    """
    if not any(point.waits for point in points):
        return list(points)
    ledger = Ledger(places.resolve(points[0].cell.config["places"]).ledger)
    return [_set_accuracy(sweep, p, points, ledger) if p.waits else p for p in points]


def check_rerun(sweep: Sweep, points: Sequence[Point]) -> None:
    """Raise ConfigError if RERUN is set for a sweep with matched arms.

    RERUN would repeat cells of the baseline, and the accuracy of such a cell decides the
    `stop_accuracy` of other cells.
    """
    rerun = points[0].cell.config["rerun"]
    if rerun != "never" and any(is_waiting(arm) for arm in sweep.arms):
        raise ConfigError(
            f"RERUN={rerun}: {sweep.path.name} has arms that are matched to finished cells of "
            f"{sweep.baseline}; leave RERUN out; to repeat cells, remove them: capsweep ledger rm"
        )


def _set_accuracy(sweep: Sweep, point: Point, points: Sequence[Point], ledger: Ledger) -> Point:
    """Set the stop_accuracy of a waiting point if its cell of the baseline is finished."""
    where = f"{sweep.path.name}: arms.{point.arm}.matched: {point.name}"
    field = {key: point.coordinate(key) for key in sweep.columns} | {"seed": point.seed}
    baselines = (p for p in points if p.arm == sweep.baseline and _is_at(p, field))
    if (baseline := next(baselines, None)) is None:
        raise ConfigError(f"{where}: {sweep.baseline} has no cell of this column and seed to match")
    result = ledger.read_result(baseline.cell.signature)
    if result is None:
        return point
    if MATCHED_METRIC not in result["metrics"]:
        raise ConfigError(f"{where}: the cell of {baseline.name} has no {MATCHED_METRIC}")
    accuracy = round(1 - result["metrics"][MATCHED_METRIC], ACCURACY_DIGITS)
    kept = [text for text in point.cell.overrides if not text.startswith(f"{ACCURACY}=")]
    cell = compose.cell([*kept, Override(ACCURACY, (accuracy,))])
    return replace(point, cell=cell, waits=False)


def make_labels(sweep: Sweep, points: Sequence[Point]) -> dict[str, content.Labels]:
    """Make the labels of each W&B run of a sweep, by the signature of its cell.

    Different cells get different names. If several places share a cell, its name comes from the
    first of these places, and its row names all of them.
    """
    runs, row = dict[str, content.Labels](), content.name_row(sweep.name)
    for point in points:
        config, signature = point.cell.config, point.cell.signature
        typed = [f"{key}={value}" for key, value in _list_settings(sweep, config)]
        place = point.title.split(content.SEPARATOR)[1:]
        name = content.format_run_name(config, point.arm, [*place, *typed], signature)
        tags = content.list_run_tags(config, sweep.name, *sweep.words)
        axes = [text.partition("=")[0] for text in place]
        columns = {content.name_axis(key): point.coordinate(key) for key in axes}
        run = content.Labels(sweep.name, point.arm, name, sweep.question, tags, {row: point.title})
        if known := runs.get(signature):
            title = f"{known.columns[row]} = {point.title}"
            run = replace(known, columns={**known.columns, row: title})
        runs[signature] = replace(run, columns={**run.columns, **columns})
    return runs


def _list_settings(sweep: Sweep, config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the typed keys of a sweep that are not axes, with their values in a configuration.

    A key whose value is a list, a mapping or None is left out.
    """
    axes = {key for arm in sweep.arms for key in arm.keys}
    pairs = [(key, get(config, key)) for key in sweep.typed_keys if key not in axes]
    return [(key, value) for key, value in pairs if isinstance(value, bool | int | float | str)]


def with_rows(sweep: Sweep) -> Sweep:
    """Return the search with row keys for its table: `arm`, then all keys of axes and intervals."""
    axes = dict.fromkeys(key for arm in sweep.arms for key in arm.keys)
    return replace(sweep, rows=("arm", *axes))


def list_points(sweep: Sweep) -> list[Point]:
    """Return the points of a sweep; for a search, the points that `check_search` returns.

    Raises:
        ConfigError: A cell is not valid; the message names the key.
    """
    return expand_sweep(sweep) if sweep.search is None else check_search(sweep)


def check_search(sweep: Sweep) -> list[Point]:
    """Check that a search can run, and return the points that the check composed.

    Every listed value of an arm occurs in a point, and so do both ends of every interval.

    Raises:
        ConfigError: A cell is not valid or does not measure the metric; the message names the key.
    """
    if len(sweep.seeds) != 1:
        raise ConfigError(f"{sweep.path.name}: seeds: a search takes one seed, got {sweep.seeds}")
    points = [point for arm in sweep.arms for point in _compose_arm(sweep, arm)]
    for point in points:
        where = f"{sweep.path.name}: {point.title}: search.metric"
        # Settings must not be chosen on test images, so a search needs validation examples.
        if not get(point.cell.config, "dataset.validation"):
            raise ConfigError(
                f"{where}: {sweep.metric} needs validation examples; type dataset.validation=1000"
            )
        validation.check_metric(where, sweep.metric, [point.cell.config])
    check_distinct_fields(with_rows(sweep), points)
    return points


def _list_edges(arm: Arm) -> Iterator[Place]:
    """Yield the first place of an arm, then places that differ from it in a single key.

    This key has another value of its axis, or the high end of its interval.
    """
    first = {choice.key: choice for choice in arm.first_place}
    yield tuple(first.values())
    for axis in (*arm.axes, *arm.intervals):
        for choice in axis.split()[1:]:
            yield tuple((first | {axis.key: choice}).values())
