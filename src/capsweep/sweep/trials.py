"""The trials of a search, as the ledger has them: it is all that a search remembers; and what the
search may draw, checked before a trial starts.

A trial is a cell that was asked for with values of the search's space. Whatever drives the search
next, from any machine, finds the finished trials there, and those that were cut short. Its name is
that of its place, in every line and table: the order of trials is another on each machine.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from capsweep.config import overrides as grammar
from capsweep.config.overrides import Override
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
    """A cell of a search, the place that was drawn for it, and what the ledger knows of it.

    value: of the search's metric, once it finished.
    """

    point: Point
    place: Place
    entry: Entry
    value: float | None

    @property
    def has_ended(self) -> bool:
        """Whether the search need not try it again."""
        return self.entry.status in ENDED


def search_of(sweep: Sweep) -> Search:
    """Return the search of a sweep that is one."""
    assert sweep.search is not None
    return sweep.search


def read_trials(sweep: Sweep, ledger: Ledger) -> list[Trial]:
    """Return the trials of a search in a ledger, in the order in which they began."""

    def read_provenance(signature: str) -> tuple[str, str, Mapping[str, Any]]:
        read = partial(ledger.read_provenance, signature)
        recorded = stored_files.read_if_sound(read) or {}
        return str(recorded.get("started")), signature, recorded

    with ThreadPoolExecutor(READERS) as pool:
        cells = sorted(pool.map(read_provenance, ledger.list_signatures()), key=lambda c: c[:2])
    drawn: list[tuple[Point, Place]] = []
    for _, signature, recorded in cells:
        with suppress(ConfigError, TypeError):  # overrides of another day, or an altered file
            drawn += _find_place(sweep, signature, recorded)
    entries = ledger.read_entries([p.cell.signature for p, _ in drawn])
    metric = search_of(sweep).metric
    return [
        Trial(point, place, entry := entries[point.cell.signature], read_value(entry, metric))
        for point, place in drawn
    ]


def count_left(sweep: Sweep, trials: Sequence[Trial]) -> int:
    """Return how many trials a search has left to draw."""
    return max(0, search_of(sweep).trials - sum(trial.has_ended for trial in trials))


def read_value(entry: Entry, metric: str) -> float | None:
    """Return the metric of a cell; None where it is not finished, or did not measure it."""
    return None if entry.result is None else entry.result["metrics"].get(metric)


def _find_place(
    sweep: Sweep, signature: str, recorded: Mapping[str, Any]
) -> Iterator[tuple[Point, Place]]:
    """Yield the place of a search whose cell has this signature, by its recorded overrides."""
    values = {o.key: o.value for o in grammar.parse_single(map(str, recorded.get("overrides", ())))}
    for arm in sweep.arms:
        if all(key in values and _may_draw(arm, key, values[key]) for key in arm.keys):
            place = tuple(Override(key, (values[key],)) for key in arm.keys)
            point = expand.make_point(arm, place, sweep.seeds[0])
            if point.cell.signature == signature:
                yield point, place
                return


def _may_draw(arm: Arm, key: str, value: Any) -> bool:
    for axis in arm.axes:
        if axis.key == key:
            return json.dumps(value) in map(json.dumps, axis.values)
    interval = next(interval for interval in arm.intervals if interval.key == key)
    kinds = (int,) if interval.integer else (int, float)
    return type(value) in kinds and interval.low <= value <= interval.high


def rank_trials(search: Search, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that finished, the best first."""
    sign = -1 if metric_format.measure_of(search.metric).higher_is_better else 1
    valued = [(sign * trial.value, trial) for trial in trials if trial.value is not None]
    return [trial for _, trial in sorted(valued, key=lambda pair: pair[0])]


def tabulate_trials(sweep: Sweep, trials: Sequence[Trial]) -> tuple[Sweep, list[Point]]:
    """Return a search as a sweep with a table, whose rows are its trials, and their points: those
    that finished, the best first, then those that failed; its notes say how settings were chosen.
    """
    ranked = rank_trials(search_of(sweep), trials)
    failed = [trial for trial in trials if trial.entry.status == "failed"]
    equal = sum(trial.value == ranked[0].value for trial in ranked)
    tied = f"{equal} trials share the best {sweep.metric}: it does not choose among them"
    notes = (*sweep.notes, *([tied] if equal > 1 else []), _describe_choice(sweep, trials))
    return replace(expand.with_rows(sweep), notes=notes), [
        trial.point for trial in (*ranked, *failed)
    ]


def _describe_choice(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """Return what a reader must know of how settings were chosen."""
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
    """Return a search in a few words: its question, what was tried, what is drawn from where."""
    search = search_of(sweep)
    ended = Counter(trial.entry.status for trial in trials if trial.has_ended)
    states = ", ".join(f"{count} {status}" for status, count in ended.items())
    seen = f"{ended.total()} seen before{f' ({states})' if states else ''}"
    left, arms = count_left(sweep, trials), ", ".join(arm.name for arm in sweep.arms)
    drawn = f"; {left} to be drawn ({search.sampler}) from {arms}" if left else ""
    return f"{sweep.name}: {sweep.question}\n{count_of(search.trials, 'trial')}, {seen}{drawn}"
