"""Searches: draw settings, train a cell with each, and rank the cells on validation examples.

The result of a search is not evidence for a claim. Optuna draws the settings, and stores nothing on
disk. Each command first gives Optuna the trials of the ledger. So a repeated command continues the
search, and begins with the trials that were interrupted.
"""

import json
from functools import partial
from typing import Any

import optuna
from optuna import distributions as kinds
from optuna.trial import TrialState
from rich.console import Console

from capsweep.config import places
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Entry, Ledger, folder_of
from capsweep.runtime.terminal import count_of
from capsweep.statistics import metric_format
from capsweep.sweep import drive, expand, plan, trials
from capsweep.sweep.drive import RunOptions, SweepEnd
from capsweep.sweep.estimates import Estimates, Limits
from capsweep.sweep.expand import Point
from capsweep.sweep.progress import SweepProgress
from capsweep.sweep.queue import Executor, JobQueue
from capsweep.sweep.resources import AUTO, Capacity
from capsweep.sweep.spec import Sweep
from capsweep.sweep.trials import Trial, search_of
from capsweep.tracking import mode as modes
from capsweep.training.run import Job, Outcome

ARM = "arm"
SAMPLERS = {"optuna": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
ENDS = {"stopped": TrialState.PRUNED, "failed": TrialState.FAIL}
optuna.logging.set_verbosity(optuna.logging.WARNING)


class TrialQueue(JobQueue):
    """The queue of a search, whose jobs are trials that Optuna draws one by one.

    Args:
        sweep: The search.
        known: The trials that are already in the ledger.
        ledger: The ledger of the trials.
        progress: Shows starts, epochs and ends of trials.
        mode: The mode of W&B for all trials: online, offline or none.
        limits: The time limits of the command.

    Attributes:
        repeated: How many draws gave a setting that was known already.
        study: The study of Optuna, which records the trials and draws new ones.
    """

    ENDED = (*JobQueue.ENDED, "stopped")

    def __init__(
        self,
        sweep: Sweep,
        known: list[Trial],
        ledger: Ledger,
        progress: SweepProgress,
        mode: str,
        limits: Limits,
    ) -> None:
        super().__init__([], ledger, progress, Estimates(None), limits)
        self.sweep, self.search, self.mode = sweep, search_of(sweep), mode
        self._numbers: dict[str, int] = {}  # Optuna's numbers of unfinished trials, by signature
        self.repeated = 0
        self._distributions = _list_distributions(sweep)
        self.study = self._make_study(known)

    def _make_study(self, known: list[Trial]) -> optuna.Study:
        """Return a study that knows these trials, and that draws the interrupted trials first."""
        # The seed changes with each resume; otherwise the sampler would repeat its first draws.
        sampler = SAMPLERS[self.search.sampler](seed=self.sweep.seeds[0] + len(known))
        is_higher_better = metric_format.measure_of(self.search.metric).higher_is_better
        direction = "maximize" if is_higher_better else "minimize"
        study = optuna.create_study(sampler=sampler, direction=direction)
        for trial in known:
            params = self._make_params(trial)
            state, value = self._judge_entry(trial.entry)
            if state == TrialState.RUNNING:
                study.enqueue_trial(params)
                continue
            own = {name: self._distributions[name] for name in params}
            ended = {"state": state, "value": value, "params": params, "distributions": own}
            study.add_trial(optuna.create_trial(**ended))
        return study

    def _judge_entry(self, entry: Entry) -> tuple[TrialState, float | None]:
        """Convert a trial's entry in the ledger into Optuna's state and the metric's value."""
        if entry.result is None:
            return ENDS.get(entry.status, TrialState.RUNNING), None
        value = trials.read_value(entry, self.search.metric)  # None if older code lacks the metric
        return (TrialState.FAIL if value is None else TrialState.COMPLETE), value

    @property
    def _count_undrawn(self) -> int:
        states = [trial.state for trial in self.study.get_trials(deepcopy=False)]
        drawn = len(states) - states.count(TrialState.WAITING)
        return max(0, self.search.trials - drawn)

    @property
    def count_left(self) -> int:
        """The number of trials that neither run in this command nor have ended.

        Trials that are not drawn yet are included.
        """
        return self._count_undrawn + super().count_left

    @property
    def is_exhausted(self) -> bool:
        """Whether no trial runs, and no other trial will start."""
        # No trial is drawn while another trial waits for free CPUs or GPUs. If the waiting trial
        # cannot start, the search ends.
        draws_no_more = self.limits.is_stopping or bool(self._pending) or not self._count_undrawn
        return super().is_exhausted and draws_no_more

    def set_capacity(self, capacity: Capacity) -> None:
        """Set the CPUs and GPUs of the executor.

        Raises:
            ConfigError: No node has enough CPUs or GPUs for a trial; the message names the key.
                This is checked only at the first call.
        """
        if self.capacity == Capacity():
            capacity.check_fits([self._make_job(expand.check_search(self.sweep)[0])])
        super().set_capacity(capacity)

    def next_job(self) -> Job | None:
        """Return a job for a retried or newly drawn trial, or None if no trial can start now.

        Draws of settings that are known already are skipped and counted in `repeated`.
        """
        job = super().next_job()
        while job is None and not self._pending and self._count_undrawn:
            if self.limits.is_stopping:
                return None
            self._draw_trial()
            job = super().next_job()
        return job

    def _draw_trial(self) -> None:
        """Draw a setting, and queue its trial if the setting is not known already.

        A setting is known if its trial has ended, is in the queue, or runs in this command.
        """
        trial = self.study.ask(self._distributions)
        point = self._make_point(trial.params)
        signature = point.cell.signature
        state, value = self._judge_entry(self.ledger.read_entry(signature))
        is_running_here = signature in self._numbers
        if is_running_here or state != TrialState.RUNNING:
            self.repeated += 1
            self.study.tell(trial, value, TrialState.FAIL if is_running_here else state)
        else:
            self._numbers[signature] = trial.number
            self.progress.names[signature] = point.title
            self._pending.append(self._make_job(point))

    def _settle(self, signature: str, outcome: Outcome) -> None:
        """Report the end of a trial to Optuna; an early end is also written to the ledger."""
        value, state = None, TrialState.FAIL
        if outcome.result is not None:
            value, state = outcome.result["metrics"][self.search.metric], TrialState.COMPLETE
        elif outcome.stopped:
            state = TrialState.PRUNED
            if (last := self._attempts[signature].last) is not None:  # None if it ran elsewhere
                content = json.dumps({"epochs": last + 1})
                self.ledger.store.write(f"{folder_of(signature)}/stopped.json", content.encode())
        self.study.tell(self._numbers.pop(signature), value, state)
        super()._settle(signature, outcome)

    def _make_point(self, params: dict[str, Any]) -> Point:
        """Compose a point from the values that Optuna drew."""
        arm = next(arm for arm in self.sweep.arms if arm.name == params[ARM])
        values = {key: params[f"{arm.name}/{key}"] for key in arm.keys}
        plain = {k: json.loads(v) if isinstance(v, str) else v for k, v in values.items()}
        place = tuple(Override(key, (value,)) for key, value in plain.items())
        return expand.make_point(arm, place, self.sweep.seeds[0])

    def _make_params(self, trial: Trial) -> dict[str, Any]:
        """Return a trial's settings as Optuna's parameters; `_make_point` does the reverse."""
        arm = trial.point.arm
        params: dict[str, Any] = {ARM: arm}
        for choice in trial.place:
            name = f"{arm}/{choice.key}"
            is_listed = isinstance(self._distributions[name], kinds.CategoricalDistribution)
            params[name] = json.dumps(choice.value) if is_listed else choice.value
        return params

    def _make_job(self, point: Point) -> Job:
        """Return the job of a trial.

        With `resources.gpu: auto`, the job takes a whole GPU, if the executor has GPUs. Trials
        differ too much to share a GPU.
        """
        cell = point.cell.with_mode(self.mode)
        labels = expand.make_labels(self.sweep, [point])[cell.signature]
        resources = cell.config["resources"]
        takes_gpu = resources["gpu"] == AUTO and self.capacity.gpu >= 1
        return Job(cell, labels, resources["cpu"], gpu=1.0 if takes_gpu else 0.0)


def _list_distributions(sweep: Sweep) -> dict[str, kinds.BaseDistribution]:
    """Return Optuna's distributions: one for the arm, one for each axis or interval of an arm."""
    arms = kinds.CategoricalDistribution([arm.name for arm in sweep.arms])
    distributions: dict[str, kinds.BaseDistribution] = {ARM: arms}
    for arm in sweep.arms:
        for axis in arm.axes:
            values = [json.dumps(value) for value in axis.values]  # Optuna cannot store lists
            distributions[f"{arm.name}/{axis.key}"] = kinds.CategoricalDistribution(values)
        for interval in arm.intervals:
            bounds: tuple[Any, ...] = interval.low, interval.high, interval.log
            kind = kinds.IntDistribution if interval.integer else kinds.FloatDistribution
            distributions[f"{arm.name}/{interval.key}"] = kind(*bounds)
    return distributions


def run(sweep: Sweep, options: RunOptions, console: Console) -> SweepEnd:
    """Draw and run trials until the search has as many trials as its file says.

    Raises:
        UserError: A key or file is wrong; the message names it. This is checked before trials
            start.
    """
    points, search = expand.check_search(sweep), search_of(sweep)
    config = points[0].cell.config
    node = places.resolve(config["places"])
    ledger = Ledger(node.ledger)
    candidates = plan.make_plan(points, ledger)
    drive.prepare_storage(node, ledger)
    plan.check_data(candidates.cells, node)
    execute = _choose_executor(sweep, options, config["epochs"])
    mode, reason = modes.decide_mode(config)
    known = trials.read_trials(sweep, ledger)
    rest = trials.count_left(sweep, known)
    progress = SweepProgress(console, {}, rest, search.metric, {}, ledger, options.renew)
    queue = TrialQueue(sweep, known, ledger, progress, mode, options.limits)
    console.out(f"{trials.describe_search(sweep, known)}\n{reason}")
    with progress:
        execute(queue, node.storage / "ray", config)
    return describe_end(queue)


def describe_end(queue: TrialQueue) -> SweepEnd:
    """Return the exit status and the last lines of a search.

    Repeated draws are not counted as trials.
    """
    total = queue.search.trials - queue.repeated
    end = drive.describe_end(queue, total - queue.count_left - len(queue.failed), total, "trial")
    if not queue.repeated:
        return end
    drawn = f"{queue.repeated} of {count_of(queue.search.trials, 'draw')} repeated a known setting"
    return SweepEnd(end.status, (f"{drawn}; type the same command again to continue", *end.lines))


def _choose_executor(sweep: Sweep, options: RunOptions, epochs: int) -> Executor:
    """Return the executor of a search, with ASHA unless the sweep file sets `scheduler: none`.

    Raises:
        ConfigError: BUDGET or SHARD is set, the executor is unknown, or ASHA would be used without
            Ray.
    """
    search = search_of(sweep)
    if options.limits.budget is not None or options.part is not None:
        raise ConfigError(
            "BUDGET and SHARD are for ablations; limit a search with MAX_HOURS or search.trials"
        )
    execute = drive.choose_executor(options.executor)
    if search.scheduler == "none":
        return execute
    if options.executor != "ray":
        raise ConfigError(
            f"EXECUTOR={options.executor}: search.scheduler asha needs EXECUTOR=ray; type that, or "
            "set search.scheduler to none in the sweep file"
        )
    from capsweep.sweep import ray_tune

    scheduler = ray_tune.make_asha(search.metric, epochs, search.reduction_factor)
    return partial(ray_tune.execute, scheduler=scheduler)
