"""What a search remembers: an Optuna study in a journal below `searches`, in its memory."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from capsweep.config.cell import signature
from capsweep.config.overrides import Interval
from capsweep.errors import UserError
from capsweep.ledger import stored_files
from capsweep.storage.stores import Disk, Store, join
from capsweep.sweep.journal import StoredJournal
from capsweep.sweep.spec import Search, Sweep

ARM = "arm"
UNFOLLOWED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Trial:
    """A complete trial: its number, the settings drawn, and the metric of the search."""

    number: int
    settings: dict[str, Any]
    value: float


@dataclass(frozen=True)
class Searched:
    """complete: the best first; seen: all trials drawn; stopped: ended early; failed."""

    complete: Sequence[Trial]
    seen: int
    stopped: int
    failed: int


def open_study(sweep: Sweep, memory: Store) -> optuna.Study:
    """The study of a search, from its journal or new. A changed space is another study."""
    wanted = searching(sweep)
    with _damage_told(sweep, memory):
        journal = JournalStorage(_journal(sweep, memory))
        study = _known(sweep, journal) or optuna.create_study(
            study_name=_name(sweep),
            storage=journal,
            direction="minimize" if wanted.mode == "min" else "maximize",
        )
        # Another seed after a resume, or the sampler would draw what it has drawn.
        seed = wanted.seed + len(study.trials)
    samplers = {"optuna": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study.sampler = samplers[wanted.sampler](seed=seed)
    return study


def remembered(sweep: Sweep, memory: Store) -> Searched:
    """What a search has seen until now, wherever it is driven from. Nothing is written."""
    with _damage_told(sweep, memory):
        is_there = memory.read(_file(sweep)) is not None
        study = _known(sweep, JournalStorage(_journal(sweep, memory))) if is_there else None
        return Searched((), 0, 0, 0) if study is None else searched(study, sweep)


@contextmanager
def _damage_told(sweep: Sweep, memory: Store) -> Iterator[None]:
    """Optuna has no error of its own for a journal that it cannot follow."""
    try:
        yield
    except UserError:
        raise
    except (*UNFOLLOWED, IsADirectoryError, AssertionError) as error:
        where = join(memory.root, _file(sweep))
        cure = "remove it: the search begins anew, and takes what is finished from the ledger"
        raise stored_files.damage(where, f"{type(error).__name__}: {error}", cure) from error


def _known(sweep: Sweep, journal: JournalStorage) -> optuna.Study | None:
    """The study, if the journal has it. To create what is there would write into the journal."""
    name = _name(sweep)
    if name not in {study.study_name for study in optuna.get_all_study_summaries(journal)}:
        return None
    return optuna.load_study(study_name=name, storage=journal)


def _name(sweep: Sweep) -> str:
    return signature({"sweep": sweep.name, "arms": repr(sweep.arms), "base": repr(sweep.base)})


def _file(sweep: Sweep) -> str:
    return f"searches/{sweep.name}.journal"


def _journal(sweep: Sweep, memory: Store) -> BaseJournalBackend:
    if not isinstance(memory, Disk):
        return StoredJournal(memory, _file(sweep))
    path = memory.path / _file(sweep)
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalFileBackend(str(path))


def searching(sweep: Sweep) -> Search:
    """The search of a sweep that is one."""
    assert sweep.search is not None
    return sweep.search


def distributions(sweep: Sweep) -> dict[str, BaseDistribution]:
    """What a trial draws, by key. With several arms, which one, and draws of its own for each."""
    several = len(sweep.arms) > 1
    found: dict[str, BaseDistribution] = {}
    if several:
        found[ARM] = CategoricalDistribution([arm.name for arm in sweep.arms])
    for arm in sweep.arms:
        start = f"{arm.name}/" if several else ""
        for axis in arm.space.axes:
            choices = [json.dumps(value) for value in axis.values]  # Optuna stores no lists
            found[start + axis.key] = CategoricalDistribution(choices)
        for interval in arm.space.intervals:
            found[start + interval.key] = _range(interval)
    return found


def _range(interval: Interval) -> BaseDistribution:
    if interval.integer:
        return IntDistribution(int(interval.low), int(interval.high), log=interval.log)
    return FloatDistribution(interval.low, interval.high, log=interval.log)


def plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """Drawn values as they were written."""
    return {
        key: json.loads(value) if isinstance(value, str) and key != ARM else value
        for key, value in params.items()
    }


def drawn(study: optuna.Study, sweep: Sweep) -> list[FrozenTrial]:
    """The trials that a study has seen; not one that its driver was killed in drawing."""
    wanted = distributions(sweep).keys()
    return [trial for trial in study.trials if trial.params.keys() == wanted]


def searched(study: optuna.Study, sweep: Sweep) -> Searched:
    """What the study has seen, complete trials the best first."""
    trials = drawn(study, sweep)
    states = Counter(trial.state for trial in trials)
    complete = [
        Trial(trial.number, plain(trial.params), trial.value)
        for trial in trials
        if trial.state == TrialState.COMPLETE and trial.value is not None
    ]
    sign = 1 if searching(sweep).mode == "min" else -1
    return Searched(
        sorted(complete, key=lambda trial: sign * trial.value),
        len(trials),
        states[TrialState.PRUNED],
        states[TrialState.FAIL],
    )
