"""Ray Tune: as many cells at once as the cluster's CPUs or GPUs allow.

Tune schedules; what is to be run, what is tried again and what came out is ours. It draws jobs from
a source, as it would draw trials from a search, in a fresh Tuner each time, so that an extended
grid or an interrupted sweep is the ordinary case.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from capsweep import ray_start

# Read by Tune when it is imported or started.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # the last report has none

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search import Searcher

from capsweep.files import write_text
from capsweep.ledger import causes
from capsweep.sweep.executors import Source
from capsweep.sweep.job import Job, OnEpoch, Outcome, run_job
from capsweep.sweep.queue import Capacity

Work = Callable[[Job, OnEpoch], Outcome]


def execute(
    source: Source,
    scratch: Path,
    address: str | None = None,
    work: Work = run_job,
    scheduler: TrialScheduler | None = None,
    declared: Capacity | None = None,
) -> None:
    """Run jobs until the source has no more; returns at Ctrl-C with finished cells in the ledger.

    scratch: a folder that all nodes see. work: what a worker does with a job. scheduler: may stop
    trials early, by their epoch rows. declared: what a local Ray is told that this machine has.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    mine = Path(tempfile.mkdtemp(dir=scratch, prefix="sweep-"))
    try:
        with _connected(address, declared):
            capacity = Capacity(*(ray.cluster_resources().get(name, 0) for name in ("CPU", "GPU")))
            # As many waiting trials as slots: Tune keeps the process of a finished trial for a
            # waiting one alone.
            os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(2, int(capacity.cpu)))
            source.opens(capacity)
            _tuner(source, work, scheduler, mine).fit()
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def asha(metric: str, mode: str, epochs: int, grace: int, factor: int) -> TrialScheduler:
    """Ends trials early whose metric is not among the best at the same epoch (Li et al. 2020)."""
    return ASHAScheduler(
        time_attr="epochs",
        metric=metric,
        mode=mode,
        max_t=epochs + 1,  # at max_t it would end a trial before its test
        grace_period=min(grace, epochs),
        reduction_factor=factor,
    )


def _connected(address: str | None, declared: Capacity | None) -> AbstractContextManager[None]:
    if declared is None:
        return ray_start.connected(address)
    return ray_start.connected(address, int(declared.cpu), int(declared.gpu))


def _tuner(
    source: Source, work: Work, scheduler: TrialScheduler | None, folder: Path
) -> tune.Tuner:
    feed = _Feed(source, folder)

    def trainable(config: Mapping[str, Any]) -> None:
        _train(config, work)

    return tune.Tuner(
        tune.with_resources(trainable, _resources),
        tune_config=tune.TuneConfig(
            search_alg=feed,
            scheduler=scheduler,
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=_signature,
            trial_dirname_creator=_folder,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(folder),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=0),  # the source knows what may be tried
            callbacks=[_Relay(feed)],
        ),
    )


def _resources(config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory([{"CPU": config["cpu"], "GPU": config["gpu"]}])


def _signature(trial: Any) -> str:
    return trial.config["signature"]


def _folder(trial: Any) -> str:
    return f"{_signature(trial)}-{trial.trial_id}"  # a cell that is tried again is another trial


def _train(config: Mapping[str, Any], work: Work) -> None:
    """Runs in a worker."""

    def report(row: dict[str, Any]) -> None:
        tune.report({**row, "epochs": row["epoch"] + 1, "row": row})

    outcome = work(Job.from_json(Path(config["job"]).read_text()), report)
    tune.report({"outcome": vars(outcome)})


class _Feed(Searcher):
    """The source as Tune sees it: a search that suggests the next job.

    Tune stores its searches for a restore, which we never do: stored, the feed has no source.
    """

    def __init__(self, source: Source, folder: Path) -> None:
        super().__init__()
        self.source, self.folder = source, folder
        self.jobs: dict[str, Job] = {}

    def suggest(self, trial_id: str) -> Any:
        if self.source.is_exhausted:
            return Searcher.FINISHED
        job = self.source.next()
        if job is None:
            return None
        self.jobs[trial_id] = job
        # Tune keeps several copies of what it suggests, to the end: so it is given a file's name.
        file = self.folder / f"{trial_id}.json"
        write_text(file, job.to_json())
        plain = {"job": str(file), "cpu": job.cpu, "gpu": job.gpu}
        return {"signature": job.cell.signature, **plain}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        return

    def save(self, checkpoint_path: str) -> None:
        return

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep is resumed from its ledger")

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Feed":
        return self


class _Relay(tune.Callback):
    """Tells the source, in the driver, what Tune reports."""

    def __init__(self, feed: _Feed) -> None:
        self.feed = feed

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Relay":
        return self

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.feed.source.started(self.feed.jobs[trial.trial_id])

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        job = self.feed.jobs.get(trial.trial_id)
        if job is None:
            return
        if "row" in result:
            self.feed.source.epoch(job, result["row"])
        elif "outcome" in result:
            self._ended(trial, Outcome(**result["outcome"]))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ended(trial, Outcome(stopped=True))  # by the scheduler, or it has said how it ended

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        error = trial.get_error()
        text = " ".join(str(error).split()) if error else ""
        if causes.kind(text) == causes.Kind.OUT_OF_MEMORY:
            cause = "OutOfMemory: Ray ended the worker because its node ran out of memory"
        else:
            cause = causes.lost("its worker process is gone (killed, or its node was lost)")
        self._ended(trial, Outcome(cause=cause))

    def _ended(self, trial: Any, outcome: Outcome) -> None:
        job = self.feed.jobs.pop(trial.trial_id, None)
        if job is not None:
            Path(trial.config["job"]).unlink(missing_ok=True)
            self.feed.source.ended(job, outcome)
