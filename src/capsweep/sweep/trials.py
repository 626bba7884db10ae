"""The trials of a search, as they are read from the ledger.

A trial is a cell whose settings are in the space of the search. The ledger is the only memory of a
search: a command on any machine finds finished and interrupted trials there. A trial is named after
its place, and not numbered, because the order of trials differs between machines.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from capsweep.config import overrides as grammar
from capsweep.errors import ConfigError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.runtime.terminal import count_of
from capsweep.statistics import metric_format
from capsweep.sweep import expand
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Arm, Place, Search, Sweep

ENDED = ("done", "stale", "stopped", "failed")


@dataclass(frozen=True)
class Trial:
    """A trial of a search that the ledger knows."""

    point: Point  # the point with its cell
    place: Place  # the values that were drawn for it
    entry: Entry  # its entry in the ledger
    value: float | None  # its value of the search's metric; None until it has one

    @property
    def has_ended(self) -> bool:
        """Whether the trial finished, failed or was stopped early. It is not run again then."""
        return self.entry.status in ENDED


def search_of(sweep: Sweep) -> Search:
    """Return the section `search` of a sweep that is known to be a search."""
    assert sweep.search is not None
    return sweep.search


def read_trials(sweep: Sweep, ledger: Ledger) -> list[Trial]:
    """Read the trials of a search from a ledger, in the order in which the trials began."""

    def read_provenance(signature: str) -> tuple[str, str, Mapping[str, Any]]:
        recorded = stored_files.read_if_sound(ledger.read_provenance, signature) or {}
        return str(recorded.get("started")), signature, recorded

    with ThreadPoolExecutor(READERS) as pool:
        cells = sorted(pool.map(read_provenance, ledger.list_signatures()), key=lambda c: c[:2])
    drawn: list[tuple[Point, Place]] = []
    for _, signature, recorded in cells:
        with suppress(ConfigError, TypeError):  # the overrides are of older code, or were altered
            drawn += _find_place(sweep, signature, recorded)
    entries = ledger.read_entries([p.cell.signature for p, _ in drawn])
    metric = search_of(sweep).metric
    return [
        Trial(point, place, entry := entries[point.cell.signature], read_value(entry, metric))
        for point, place in drawn
    ]


def count_left(sweep: Sweep, trials: Sequence[Trial]) -> int:
    """Return the number of trials that a search has left to draw."""
    return max(0, search_of(sweep).trials - sum(trial.has_ended for trial in trials))


def read_value(entry: Entry, metric: str) -> float | None:
    """Return the value of a metric; None if the cell has not finished or lacks the metric."""
    return None if entry.result is None else entry.result["metrics"].get(metric)


def _find_place(
    sweep: Sweep, signature: str, recorded: Mapping[str, Any]
) -> Iterator[tuple[Point, Place]]:
    """Yield the point and place of a recorded cell, if the cell belongs to the search.

    Args:
        sweep: The search.
        signature: The signature of the cell.
        recorded: The cell's provenance, with its overrides.
    """
    values = {o.key: o.value for o in grammar.parse_single(map(str, recorded.get("overrides", ())))}
    for arm in sweep.arms:
        if all(key in values and _may_draw(arm, key, values[key]) for key in arm.keys):
            place = tuple(grammar.Override(key, (values[key],)) for key in arm.keys)
            point = expand.make_point(arm, place, sweep.seeds[0])
            if point.cell.signature == signature:
                yield point, place
                return


def _may_draw(arm: Arm, key: str, value: Any) -> bool:
    """Return whether a search can draw this value for a key of an arm."""
    for axis in arm.axes:
        if axis.key == key:
            return json.dumps(value) in map(json.dumps, axis.values)
    interval = next(interval for interval in arm.intervals if interval.key == key)
    kinds = (int,) if interval.integer else (int, float)
    return type(value) in kinds and interval.low <= value <= interval.high


def rank_trials(search: Search, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that have a value of the search's metric, the best first."""
    sign = -1 if metric_format.measure_of(search.metric).higher_is_better else 1
    valued = [(sign * trial.value, trial) for trial in trials if trial.value is not None]
    return [trial for _, trial in sorted(valued, key=lambda pair: pair[0])]


def tabulate_trials(sweep: Sweep, trials: Sequence[Trial]) -> tuple[Sweep, list[Point]]:
    """Make the table of a search, with a row for each trial.

    Returns:
        The sweep and its points. The sweep has the row keys of the table, and notes that say how
        settings were chosen. The points are those of finished trials, the best first, then those of
        failed trials.
    """
    ranked = rank_trials(search_of(sweep), trials)
    failed = [trial for trial in trials if trial.entry.status == "failed"]
    equal = sum(trial.value == ranked[0].value for trial in ranked)
    tied = f"{equal} trials share the best {sweep.metric}, so it cannot rank them"
    notes = (*sweep.notes, *([tied] if equal > 1 else []), _describe_choice(sweep, trials))
    shown = [trial.point for trial in (*ranked, *failed)]
    return replace(expand.with_rows(sweep), notes=notes), shown


def _describe_choice(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """Describe how the settings of a search were chosen, as a note for its table."""
    search, statuses = search_of(sweep), Counter(trial.entry.status for trial in trials)
    stopped, ended = statuses["stopped"], sum(trial.has_ended for trial in trials)
    early = f"{stopped} ended early and are not shown" if stopped else "none early"
    complete = sum(trial.value is not None for trial in trials)
    return (
        f"Settings chosen on {search.metric} of validation examples (seed {sweep.seeds[0]}): "
        f"{ended} of {search.trials} trials seen, {complete} complete, {early}, "
        f"{statuses['failed']} failed; sampler {search.sampler}, scheduler {search.scheduler}. The "
        "best of many trials looks better than it is: this table supports no claim; run the chosen "
        "setting as an ablation, with other seeds"
    )


def describe_search(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """Describe a search in two lines.

    The first line is its question. The second line says how many trials have ended, and how many
    trials are left to draw.
    """
    search = search_of(sweep)
    ended = Counter(trial.entry.status for trial in trials if trial.has_ended)
    states = ", ".join(f"{count} {status}" for status, count in ended.items())
    seen = f"{ended.total()} ended before{f' ({states})' if states else ''}"
    left, arms = count_left(sweep, trials), ", ".join(arm.name for arm in sweep.arms)
    drawn = f"; {left} left to draw ({search.sampler}); arms: {arms}" if left else ""
    return f"{sweep.name}: {sweep.question}\n{count_of(search.trials, 'trial')}, {seen}{drawn}"
