"""A search: settings are drawn, tried, and chosen on validation examples. It supports no claim.

Optuna draws; the cells are in the ledger as any others. The same command goes on: trials that were
cut short are tried again first.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from capsweep.config import metric_names
from capsweep.config.cell import Cell, get
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.ledger import causes
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.sweep import expand
from capsweep.sweep.arms import Arm
from capsweep.sweep.expand import Point
from capsweep.sweep.gpu_packing import AUTO, Capacity
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.limits import Limits
from capsweep.sweep.queue import AwaitedCells, RestartPolicy, SweepListener
from capsweep.sweep.spec import Sweep
from capsweep.sweep.study import ARM, distributions, drawn, plain, searching
from capsweep.tracking import mode as modes


class StudySource:
    """A search as a source of jobs: Optuna is asked for the next, and told how each ended."""

    def __init__(
        self,
        sweep: Sweep,
        study: optuna.Study,
        ledger: Ledger,
        listener: SweepListener,
        mode: str,
        limits: Limits | None = None,
        example: Point | None = None,
    ) -> None:
        self.example = example
        self.sweep, self.study, self.ledger, self.listener = sweep, study, ledger, listener
        self.limits = limits or Limits()
        self.mode, self.search = mode, searching(sweep)
        self.failed: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self._arms = {arm.name: arm for arm in sweep.arms}
        self._numbers: dict[str, int] = {}  # of the trials that run, by signature
        self._rows: dict[str, dict[str, Any]] = {}
        self._again = self._cut_short()
        self._restarts = RestartPolicy()
        self._awaited_cells = AwaitedCells(ledger)
        self._awaited: dict[str, int] = {}  # trials that other processes run, by signature
        self._dead: dict[str, str] = {}  # claims of those whose process is gone, see Job
        self._gpu = 0.0

    @property
    def is_exhausted(self) -> bool:
        """Whether all trials were drawn and have ended."""
        if self.limits.is_stopping:  # what waits for a node, which may never come, counts not
            return not any(map(self.limits.has_begun, self._numbers))
        return not self._numbers and not self._awaited and self._left == 0

    @property
    def count_left(self) -> int:
        """Trials that were not seen to their end: not drawn, or to be tried again."""
        waiting = [found for found in self._numbers if not self.limits.has_begun(found)]
        return self._left + len(waiting) + len(self._awaited)

    @property
    def _left(self) -> int:
        return max(0, self.search.trials - len(drawn(self.study, self.sweep))) + len(self._again)

    def set_capacity(self, capacity: Capacity) -> None:
        """See Source. gpu=auto is a whole GPU: trials differ too much to be packed."""
        self._gpu = 1.0 if capacity.gpu >= 1 else 0.0
        if self.example is not None:
            capacity.check_fits([self._job(self.example)])

    def next_job(self) -> Job | None:
        """The next setting that is not known already; None when all are drawn."""
        self._look_elsewhere()
        while self._left and not self.limits.is_stopping:
            number, point = self._drawn()
            found = point.cell.signature
            if found in self._numbers or found in self._awaited:
                self._tell(number, state=TrialState.FAIL)  # the same setting, running now
                continue
            if self._is_known(number, point.cell):
                continue
            self._numbers[found], self.names[found] = number, f"trial {number} · {point.title}"
            return self._job(point)
        return None

    def on_start(self, job: Job) -> None:
        """See Source."""
        self.limits.begin(job.cell.signature, job.gpu)
        self.listener.on_start(job.cell.signature)

    def on_epoch(self, job: Job, row: dict[str, Any]) -> None:
        """See Source."""
        self._rows[job.cell.signature] = row
        self._restarts.add_epoch(job.cell.signature, row)
        self.listener.on_epoch(job.cell.signature, row)

    def on_end(self, job: Job, outcome: Outcome) -> None:
        """Tell the study: a value, an early end, or a failure."""
        found = job.cell.signature
        number = self._numbers.pop(found, None)
        if number is None:
            return
        self.limits.end(found)
        if outcome.ends_sweep:
            self.limits.refuse_more(outcome.left)
        if outcome.elsewhere is not None:
            self.listener.on_message(found, outcome.elsewhere)
            self._awaited_cells.add_job(job)
            self._awaited[found] = number
            return
        if outcome.cause is not None and causes.is_loss(outcome.cause):
            why = self._restarts.add_loss(found, outcome.cause)
            if why is None:
                self._again.append(self._trial(number))
                self.listener.on_message(
                    found, f"{outcome.cause}; goes on from its last checkpoint"
                )
                return
            outcome = Outcome(cause=why)
        self._settle(found, number, outcome)

    def _settle(self, found: str, number: int, outcome: Outcome) -> None:
        if outcome.result is not None:
            self._tell(number, outcome.result["metrics"][self.search.metric])
        elif outcome.stopped:
            self._stopped(found, number)
        elif outcome.left:  # to the study it runs still, and so it is tried again first
            self._again.append(self._trial(number))
        else:
            self.failed[found] = outcome.cause or "unknown"
            self._tell(number, state=TrialState.FAIL)
        self.listener.on_end(found, outcome)

    def _look_elsewhere(self) -> None:
        for job, entry in self._awaited_cells.pop_ended():
            found = job.cell.signature
            number = self._awaited.pop(found)
            if entry is None:
                self._dead[found] = job.dead
                self._again.append(self._trial(number))
            else:
                self._settle(found, number, Outcome(entry.result, entry.cause))

    def _tell(
        self, number: int, value: float | None = None, state: TrialState | None = None
    ) -> None:
        """Another process may have told the study first, of a trial that both waited for."""
        self.study.tell(number, value, state, skip_if_finished=True)

    def _cut_short(self) -> list[FrozenTrial]:
        """Trials of an earlier driver that never ended. One killed while it was drawn has failed,
        and another is drawn for it.
        """
        running = [trial for trial in self.study.trials if trial.state == TrialState.RUNNING]
        again = [trial for trial in drawn(self.study, self.sweep) if trial in running]
        for trial in running:
            if trial not in again:
                self.study.tell(trial.number, state=TrialState.FAIL)
        return again

    def _trial(self, number: int) -> FrozenTrial:
        return next(trial for trial in self.study.trials if trial.number == number)

    def _stopped(self, found: str, number: int) -> None:
        row = self._rows.get(found, {})
        content = json.dumps({"epochs": row.get("epoch", -1) + 1, "metrics": row})
        self.ledger.store.write(f"{folder_of(found)}/stopped.json", content.encode())
        self._tell(number, state=TrialState.PRUNED)

    def _drawn(self) -> tuple[int, Point]:
        if self._again:
            trial = self._again.pop(0)
            return trial.number, self._point(plain(trial.params))
        trial = self.study.ask(distributions(self.sweep))
        return trial.number, self._point(plain(trial.params))

    def _point(self, params: Mapping[str, Any]) -> Point:
        arm = params.get(ARM, next(iter(self._arms)))
        start = f"{arm}/" if len(self._arms) > 1 else ""
        place = {
            key.removeprefix(start): value
            for key, value in params.items()
            if key != ARM and key.startswith(start)
        }
        chosen = tuple(Override(key, (value,)) for key, value in place.items())
        return expand.make_point(self.sweep, self._arms[arm], chosen, self.sweep.seeds[0])

    def _is_known(self, number: int, cell: Cell) -> bool:
        """Whether the ledger has the answer; the study is then told at once."""
        entry = self.ledger.entry(cell.signature)
        if entry.result is not None:
            self._tell(number, entry.result["metrics"][self.search.metric])
        elif entry.status == "stopped":
            self._tell(number, state=TrialState.PRUNED)
        return entry.result is not None or entry.status == "stopped"

    def _job(self, point: Point) -> Job:
        cell = modes.settled(point.cell, self.mode)
        labels = expand.make_labels(self.sweep, [point])[cell.signature]
        gpu = cell.config["resources"]["gpu"]
        share, dead = self._gpu if gpu == AUTO else gpu, self._dead.get(cell.signature, "")
        return Job(cell, labels, cell.config["resources"]["cpu"], share, dead)


def check(sweep: Sweep) -> Point:
    """Every value of every arm can be run, and measures the metric; returns one place.

    Raises ConfigError naming the key.
    """
    if len(sweep.seeds) != 1:
        raise ConfigError(f"{sweep.path.name}: seeds: a search takes one seed, got {sweep.seeds}")
    found = None
    for arm in sweep.arms:
        for place in _edges(arm):
            chosen = tuple(Override(key, (value,)) for key, value in place.items())
            found = expand.make_point(sweep, arm, chosen, sweep.seeds[0])
            where = f"{sweep.path.name}: {found.title}: search.metric"
            # Held out of training: a data set that is validated on test images chooses nothing.
            if not get(found.cell.config, "dataset.validation"):
                raise ConfigError(
                    f"{where}: {searching(sweep).metric} needs validation examples; "
                    "set dataset.validation"
                )
            metric_names.check_metric(where, searching(sweep).metric, [found.cell.config])
    assert found is not None
    return found


def _edges(arm: Arm) -> Iterator[dict[str, Any]]:
    """Places in which every value of every list stands once, intervals at their lower end."""
    lowest = {one.key: int(one.low) if one.integer else one.low for one in arm.space.intervals}
    first = {axis.key: axis.values[0] for axis in arm.space.axes} | lowest
    yield from (first | {axis.key: value} for axis in arm.space.axes for value in axis.values[1:])
    yield first
