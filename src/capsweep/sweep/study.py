"""What a search remembers: an Optuna study in a journal below `storage/searches`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from capsweep.config.cell import signature
from capsweep.config.overrides import Interval
from capsweep.sweep.spec import Search, Sweep

ARM = "arm"
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


def open_study(sweep: Sweep, storage: Path) -> optuna.Study:
    """The study of a search, from its journal or new. A changed space is another study."""
    wanted = searching(sweep)
    folder = storage / "searches"
    folder.mkdir(parents=True, exist_ok=True)
    journal = JournalStorage(JournalFileBackend(str(folder / f"{sweep.name}.journal")))
    name = signature({"sweep": sweep.name, "arms": repr(sweep.arms), "base": repr(sweep.base)})
    known = {study.study_name for study in optuna.get_all_study_summaries(journal)}
    study = optuna.create_study(
        study_name=name,
        storage=journal,
        direction="minimize" if wanted.mode == "min" else "maximize",
        load_if_exists=name in known,
    )
    # Another seed after a resume, or the sampler would draw what it has drawn.
    seed = wanted.seed + len(study.trials)
    samplers = {"optuna": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study.sampler = samplers[wanted.sampler](seed=seed)
    return study


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


def searched(study: optuna.Study, search: Search) -> Searched:
    """What the study has seen, complete trials the best first."""
    by_state = {state: [t for t in study.trials if t.state == state] for state in TrialState}
    complete = [
        Trial(trial.number, plain(trial.params), trial.value)
        for trial in by_state[TrialState.COMPLETE]
        if trial.value is not None
    ]
    sign = 1 if search.mode == "min" else -1
    return Searched(
        sorted(complete, key=lambda trial: sign * trial.value),
        len(study.trials),
        len(by_state[TrialState.PRUNED]),
        len(by_state[TrialState.FAIL]),
    )
