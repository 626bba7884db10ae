"""Ray Tune: as many cells at once as the cluster's CPUs or GPUs allow.

Tune schedules; what is to be run, what is tried again and what came out is ours. It draws jobs from
a source, as it would draw trials from a search, in a fresh Tuner each time, so that an extended
grid or an interrupted sweep is the ordinary case.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from capsweep import ray_start

# Read by Tune when it is imported or started.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # the last report has none

from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search import Searcher

from capsweep.config import shipped
from capsweep.ledger import causes
from capsweep.ray_start import ray
from capsweep.sweep import node
from capsweep.sweep.cluster import LOCAL, Cluster
from capsweep.sweep.executors import Source, leaving, placing
from capsweep.sweep.executors.placing import Nodes
from capsweep.sweep.job import Job, OnEpoch, Outcome, run_job
from capsweep.sweep.placement import Capacity

logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # why trials end is ours to say

Work = Callable[[Job, OnEpoch], Outcome]


def execute(
    source: Source,
    scratch: Path,
    cluster: Cluster = LOCAL,
    work: Work = run_job,
    scheduler: TrialScheduler | None = None,
    declared: Capacity | None = None,
) -> None:
    """Run jobs until the source has no more; returns at Ctrl-C with finished cells in the ledger.

    scratch: a folder of this machine. work: what a worker does with a job. scheduler: may stop
    trials early, by their epoch rows. declared: what a local Ray is told that this machine has.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=scratch, prefix="sweep-") as mine,
        _connected(cluster, declared) as nodes,
        leaving.signalled(source) as signal,
    ):
        capacity = placing.capacity() if nodes is None else nodes.capacity()
        # As many waiting trials as slots: Tune keeps the process of a finished trial for a
        # waiting one alone.
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(2, int(capacity.cpu)))
        source.opens(capacity)
        _tuner(_Feed(source, nodes), work, scheduler, mine, signal).fit()


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


@contextmanager
def _connected(cluster: Cluster, declared: Capacity | None) -> Iterator[Nodes | None]:
    """A Ray, and its nodes unless it is of this machine. Raises ConfigError where none fits."""
    size = (None, None) if declared is None else (int(declared.cpu), int(declared.gpu))
    if cluster.address is None or cluster.config is None:
        with ray_start.connected(cluster.address, *size):
            yield None
        return
    with (
        shipped.staged_for(cluster.address) as package,
        ray_start.connected(cluster.address, package=package),
        node.required(cluster.config) as wanted,
    ):
        nodes = Nodes(cluster, wanted)
        nodes.check()
        yield nodes


def _tuner(
    feed: "_Feed",
    work: Work,
    scheduler: TrialScheduler | None,
    folder: str,
    signal: leaving.Signal,
) -> tune.Tuner:
    is_to_leave = signal.heard()

    def trainable(config: Mapping[str, Any]) -> None:
        _train(config, work, is_to_leave)

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
            storage_path=folder,  # nothing that workers write comes there
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=0),  # the source knows what may be tried
            callbacks=[_Relay(feed, signal)],
            stop=leaving.Waiting(feed.source),
        ),
    )


def _resources(config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory(**placing.bundles(config))


def _signature(trial: Any) -> str:
    return trial.config["signature"]


def _folder(trial: Any) -> str:
    return f"{_signature(trial)}-{trial.trial_id}"  # a cell that is tried again is another trial


def _train(config: Mapping[str, Any], work: Work, is_to_leave: Callable[[], bool]) -> None:
    """Runs in a worker."""

    def report(row: dict[str, Any]) -> bool:
        tune.report({**row, "epochs": row["epoch"] + 1, "row": row})
        return is_to_leave()

    outcome = work(Job.from_json(config["job"]), report)
    where = ray.get_runtime_context().get_node_id()
    tune.report({"outcome": vars(outcome), "node": where})


class _Feed(Searcher):
    """The source as Tune sees it: a search that suggests the next job.

    Tune stores its searches for a restore, which we never do: stored, the feed has no source.
    """

    def __init__(self, source: Source, nodes: Nodes | None) -> None:
        super().__init__()
        self.source, self.nodes = source, nodes
        self.jobs: dict[str, Job] = {}
        self.refused: list[Job] = []

    def suggest(self, trial_id: str) -> Any:
        if self.nodes is not None and (grown := self.nodes.grown()) is not None:
            self.source.opens(grown)
        if not self.refused and self.source.is_exhausted:
            return Searcher.FINISHED
        job = self.refused.pop() if self.refused else self.source.next()
        if job is None:
            return None
        self.jobs[trial_id] = job
        return {
            "signature": job.cell.signature,
            "job": replace(job, wanted=None if self.nodes is None else self.nodes.wanted).to_json(),
            **{name: getattr(job, name) for name in ("cpu", "gpu", "memory", "kind")},
            "avoided": [] if self.nodes is None else self.nodes.avoided(),
        }

    def ended(self, trial_id: str, outcome: Outcome, where: str | None = None) -> None:
        """Tell the source, or try another node, which nobody else need know of."""
        job = self.jobs.pop(trial_id, None)
        if job is None:
            return
        cause = outcome.cause
        if self.nodes is not None and where is not None and cause is not None:
            is_of_node = causes.kind(cause) == causes.Kind.NODE
            if is_of_node and self.nodes.refuse(where, cause):
                self.refused.append(job)
                return
        self.source.ended(job, outcome)

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

    def __init__(self, feed: _Feed, signal: leaving.Signal) -> None:
        self.feed, self.signal = feed, signal

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Relay":
        return self

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self.signal.look()

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
            self.feed.ended(trial.trial_id, Outcome(**result["outcome"]), result["node"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        # By the scheduler, or it has said how it ended.
        self.feed.ended(trial.trial_id, Outcome(stopped=True))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        error = trial.get_error()
        text = " ".join(str(error).split()) if error else ""
        if causes.kind(text) == causes.Kind.OUT_OF_MEMORY:
            cause = "OutOfMemory: Ray ended the worker because its node ran out of memory"
        else:
            cause = causes.lost("its worker process is gone (killed, or its node was lost)")
        self.feed.ended(trial.trial_id, Outcome(cause=cause))
