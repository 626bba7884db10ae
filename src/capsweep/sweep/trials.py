"""The trials of a search, as the ledger has them: it is all that a search remembers.

A trial is a cell that was asked for with values of the search's space. Whatever drives the search
next, from any machine, finds the finished trials there, and those that were cut short.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from capsweep.config import overrides as grammar
from capsweep.config import validation
from capsweep.config.cell import get
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError, DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.statistics import metric_format
from capsweep.sweep import expand
from capsweep.sweep.arms import Arm, Place
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Search, Sweep


@dataclass(frozen=True)
class Trial:
    """A cell of a search, the place that was drawn for it, and what the ledger knows of it.

    number: in the order in which trials began. value: of the search's metric, once it finished.
    """

    number: int
    point: Point
    place: Place
    entry: Entry
    value: float | None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings drawn."""
        return {choice.key: choice.value for choice in self.place}

    @property
    def has_ended(self) -> bool:
        """Whether the search need not try it again."""
        return self.value is not None or self.entry.status in ("stopped", "failed")


def search_of(sweep: Sweep) -> Search:
    """The search of a sweep that is one."""
    assert sweep.search is not None
    return sweep.search


def read_trials(sweep: Sweep, ledger: Ledger) -> list[Trial]:
    """The trials of a search in a ledger, in the order in which they began."""

    def read_provenance(signature: str) -> tuple[str, str, Mapping[str, Any]]:
        try:
            recorded = ledger.read_provenance(signature)
        except DamageError as error:
            stored_files.print_damage(error)
            recorded = {}
        return str(recorded.get("started")), signature, recorded

    with ThreadPoolExecutor(READERS) as pool:
        cells = sorted(pool.map(read_provenance, ledger.list_signatures()), key=lambda c: c[:2])
    drawn: list[tuple[Point, Place]] = []
    for _, signature, recorded in cells:
        with suppress(ConfigError, TypeError):  # overrides of another day, or an altered file
            drawn += _find_place(sweep, signature, recorded)
    entries, metric = ledger.entries([p.cell.signature for p, _ in drawn]), search_of(sweep).metric
    trials: list[Trial] = []
    for number, (point, place) in enumerate(drawn):
        entry = entries[point.cell.signature]
        value = None if entry.result is None else entry.result["metrics"].get(metric)
        trials.append(Trial(number, point, place, entry, value))
    return trials


def _find_place(
    sweep: Sweep, signature: str, recorded: Mapping[str, Any]
) -> Iterator[tuple[Point, Place]]:
    """The place of a search whose cell has this signature, by the overrides that were recorded."""
    values = {o.key: o.value for o in grammar.parse_single(map(str, recorded.get("overrides", ())))}
    for arm in sweep.arms:
        if all(key in values and _may_draw(arm, key, values[key]) for key in arm.space.keys):
            place = tuple(Override(key, (values[key],)) for key in arm.space.keys)
            point = expand.make_point(sweep, arm, place, sweep.seeds[0])
            if point.cell.signature == signature:
                yield point, place
                return


def _may_draw(arm: Arm, key: str, value: Any) -> bool:
    for axis in arm.space.axes:
        if axis.key == key:
            return json.dumps(value) in map(json.dumps, axis.values)
    interval = next(interval for interval in arm.space.intervals if interval.key == key)
    kinds = (int,) if interval.integer else (int, float)
    return type(value) in kinds and interval.low <= value <= interval.high


def rank_trials(search: Search, trials: Sequence[Trial]) -> list[Trial]:
    """The trials that finished, the best first."""
    is_higher_better = metric_format.measure_of(search.metric).higher_is_better
    values = [(trial.value, trial.number) for trial in trials if trial.value is not None]
    ranked = sorted(values, key=lambda pair: pair[0], reverse=is_higher_better)
    return [trials[number] for _, number in ranked]


def check_search(sweep: Sweep) -> Point:
    """Every value of every arm can be run, and measures the metric; returns one place.

    Raises ConfigError naming the key.
    """
    if len(sweep.seeds) != 1:
        raise ConfigError(f"{sweep.path.name}: seeds: a search takes one seed, got {sweep.seeds}")
    metric = search_of(sweep).metric
    places = [(arm, place) for arm in sweep.arms for place in _list_edges(arm)]
    points = [expand.make_point(sweep, arm, place, sweep.seeds[0]) for arm, place in places]
    for point in points:
        where = f"{sweep.path.name}: {point.title}: search.metric"
        # Held out of training: a data set that is validated on test images chooses nothing.
        if not get(point.cell.config, "dataset.validation"):
            raise ConfigError(
                f"{where}: {metric} needs validation examples; set dataset.validation"
            )
        validation.check_metric(where, metric, [point.cell.config])
    return points[0]


def _list_edges(arm: Arm) -> Iterator[Place]:
    """Places in which every value of every list stands once, intervals at their lower end."""
    first = {choice.key: choice for choice in arm.space.first_place()}
    yield tuple(first.values())
    for axis in arm.space.axes:
        for choice in axis.split()[1:]:
            yield tuple((first | {axis.key: choice}).values())
