"""Ray Tune: as many cells at once as the cluster's CPUs or GPUs allow.

Tune schedules; what is to be run, what is tried again and what came out is ours. It draws jobs from
a queue, as it would draw trials from a search, in a fresh Tuner each time, so that an extended
grid or an interrupted sweep is the ordinary case.
"""

import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from capsweep.runtime import ray_start
from capsweep.training import provenance

# Read by Tune when it is imported or started.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # the last report has none

from ray import tune
from ray.tune.execution import class_cache
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search import Searcher

from capsweep.config import code_identity, package_files
from capsweep.errors import NodeError
from capsweep.ledger import causes
from capsweep.runtime.ray_start import exceptions, ray
from capsweep.statistics import metric_format
from capsweep.storage.scratch import own_prefix
from capsweep.sweep.executors import LOCAL, Cluster, cluster_nodes
from capsweep.sweep.executors.cluster_nodes import ClusterNodes
from capsweep.sweep.job import Capacity, Job, Outcome, run_job
from capsweep.sweep.limits import Limits
from capsweep.sweep.queue import JobQueue
from capsweep.training.run_hooks import Row, RunHooks

logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the queue says why trials end

# Tune would hand these to workers in a command line, which ends in a log too. Workers have the
# environment of their node.
SECRETS = {name for name in class_cache.ENV_VARS_TO_PROPAGATE if name.startswith("AWS_")}
class_cache.ENV_VARS_TO_PROPAGATE -= SECRETS

LONGEST = 200  # characters of what Ray says
# Of it: colours, a title, ids of an actor.
DETAILS = re.compile(
    r"(?m)\x1b\[[0-9;]*m|^Failure # .*|^\t\w+: .*|^The actor \w{16,} is unavail.*?: "
)
ASK_SECONDS = 1.0  # between two questions of a trial, whose epochs may be short
ANSWER_SECONDS = 5.0  # that a question may take
LOW_ON_MEMORY = ("running low on memory", "NODE_OUT_OF_MEMORY")  # as Ray 2.60 words it
Work = Callable[[Job, RunHooks], Outcome]


def execute(
    queue: JobQueue,
    scratch: Path,
    cluster: Cluster = LOCAL,
    work: Work = run_job,
    scheduler: TrialScheduler | None = None,
    declared: Capacity | None = None,
) -> None:
    """Run jobs until the queue has no more; returns at Ctrl-C, and when the Ray of this machine is
    lost, with finished cells in the ledger.

    scratch: a folder of this machine. work: what a worker does with a job. scheduler: may stop
    trials early, by their epoch rows. declared: what a local Ray is told that this machine has.
    Raises ConfigError where a cluster has no node that can run the cells.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    imports = _choose_imports(queue, declared) if work is run_job else ()
    with (
        suppress(ray_start.RayLostError),
        tempfile.TemporaryDirectory(dir=scratch, prefix=own_prefix("sweep")) as folder,
        _connected(cluster, declared, imports) as required,
        open_stop_signal(queue.limits) as signal,
    ):
        nodes = ClusterNodes(cluster)
        capacity = nodes.read_capacity()
        # As many waiting trials as slots: Tune keeps the process of a finished trial for a
        # waiting one alone.
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(2, int(capacity.cpu)))
        queue.set_capacity(capacity)
        searcher = QueueSearcher(queue, nodes)

        def train(config: Mapping[str, Any]) -> None:
            _run_trial(config, work, signal, required)

        tune.Tuner(
            tune.with_resources(train, make_resources),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=scheduler,
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=_name_folder,
            ),
            run_config=tune.RunConfig(  # without retries, which the queue decides on
                name="sweep",
                storage_path=folder,  # nothing that workers write comes there
                verbose=0,
                callbacks=[QueueCallback(searcher, signal)],
                stop=QueueStopper(searcher),
            ),
        ).fit()
        nodes.check_usable()


def make_asha(metric: str, epochs: int, factor: int) -> TrialScheduler:
    """Ends trials early whose metric is not among the best at the same epoch (Li et al. 2020)."""
    return ASHAScheduler(
        time_attr="epochs",
        metric=metric,
        mode="max" if metric_format.measure_of(metric).higher_is_better else "min",
        max_t=epochs + 1,  # at max_t it would end a trial before its test
        reduction_factor=factor,
    )


def _choose_imports(queue: JobQueue, declared: Capacity | None) -> tuple[str, ...]:
    """The modules that waiting workers import; none where they outnumber the cells: Ray starts a
    worker for each core, and cells that use GPUs are as few as these.
    """
    machine = declared or Capacity(cpu=os.cpu_count() or 1, gpu=len(provenance.list_gpus()))
    has_cell_per_core = machine.gpu == 0 and queue.count_left >= machine.cpu
    return (__name__, "capsweep.training.run") if has_cell_per_core else ()


@contextmanager
def _connected(
    cluster: Cluster, declared: Capacity | None, imports: Sequence[str]
) -> Iterator[dict[str, Any] | None]:
    """A Ray, and what is required of its nodes; nothing of this machine."""
    if cluster.address is None:
        size = (None, None) if declared is None else (int(declared.cpu), int(declared.gpu))
        with _inherited_environment(), ray_start.connected(None, *size, imports=imports):
            yield None
        return
    assert cluster.config is not None
    with (
        package_files.staged_packages_for(cluster.address) as package,
        ray_start.connected(cluster.address, package=package),
        cluster_nodes.node_requirements(cluster.config) as required,
    ):
        yield required


@contextmanager
def _inherited_environment() -> Iterator[None]:
    """Trials have the environment of their worker, which is this process's. Tune would give them
    variables of their own; then Ray starts another process for each, beside its idle workers.
    """
    before = class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE
    os.environ.update(class_cache.DEFAULT_ENV_VARS)
    class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE = {}, set()
    try:
        yield
    finally:
        class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE = before


def _name_folder(trial: Any) -> str:
    return trial.trial_id


def _run_trial(
    config: Mapping[str, Any], work: Work, signal: "StopSignal", required: Mapping[str, Any] | None
) -> None:
    """Runs in a worker."""

    def report_epoch(row: Row) -> bool:
        tune.report({**row, "epochs": row["epoch"] + 1, "row": row})
        return signal.is_set()

    job = Job.from_json(config["job"])
    try:
        if required is not None:
            cluster_nodes.check_node(required, job.cell.config)
        outcome = work(job, RunHooks(on_epoch=report_epoch))
    except NodeError as error:
        outcome = Outcome(cause=causes.describe_cause(error))
    node = ray.get_runtime_context().get_node_id()
    tune.report({"outcome": vars(outcome), "node": node})


class _NotStored:
    """Tune copies and stores its parts for a restore, which we never do."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class QueueSearcher(_NotStored, Searcher):
    """Suggests the jobs of a queue. nodes: those that run them."""

    def __init__(self, queue: JobQueue, nodes: ClusterNodes) -> None:
        super().__init__()
        self.queue, self.nodes = queue, nodes
        self.jobs: dict[str, Job] = {}

    def suggest(self, trial_id: str) -> Any:
        if (capacity := self.nodes.find_growth()) is not None:
            self.queue.set_capacity(capacity)
        if self.queue.is_exhausted:
            return Searcher.FINISHED
        job = self.queue.next_job()
        if job is None:
            return None
        self.jobs[trial_id] = job
        return {
            "job": replace(job, code=code_identity.hash_numerics(job.cell.config)).to_json(),
            "resources": {"CPU": job.cpu, "GPU": job.gpu},
            "avoided": sorted(self.nodes.refused),
        }

    def end_job(self, trial_id: str, outcome: Outcome, node: str = "") -> None:
        """Report the end of a job to the queue. One that its node refused waits for another."""
        job = self.jobs.pop(trial_id, None)
        if job is None:
            return
        cause = outcome.cause or ""
        if node and causes.kind_of_cause(cause) == causes.CauseKind.NODE:
            has_other = self.nodes.refuse(node, cause)
            outcome = Outcome(paused="waits for another node", ends_sweep=not has_other)
        self.queue.on_end(job, outcome)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        return

    def save(self, checkpoint_path: str) -> None:
        return


def make_resources(config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    """The resources of a trial; one bundle is on one node."""
    bundle = {name: amount for name, amount in config["resources"].items() if amount}
    if not (avoided := config["avoided"]):
        return tune.PlacementGroupFactory([bundle])
    selector = {"ray.io/node-id": f"!in({','.join(avoided)})"}
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=[selector])


class StopSignal:
    """An actor, which trials ask when an epoch ends whether they are to leave. The driver sets it.

    Tune itself can only end a trial at once, which would lose its epoch.

    event: an actor, None where no trial will ever have to leave.
    """

    def __init__(self, event: Any) -> None:
        self._event, self._is_set, self._next_ask = event, False, 0.0

    def set_once(self) -> None:
        """Tell all trials to leave."""
        if not self._is_set and self._event is not None:
            self._event.set_event.remote()
        self._is_set = True

    def is_set(self) -> bool:
        """Whether a trial is to leave, asked at most once a second."""
        if self._event is not None and not self._is_set and time.monotonic() >= self._next_ask:
            with suppress(exceptions.RayError):  # the actor may be gone
                answer = ray.get(self._event.has_event.remote(), timeout=ANSWER_SECONDS)
                self._is_set = bool(answer)
            self._next_ask = time.monotonic() + ASK_SECONDS
        return self._is_set


class _Event:
    def __init__(self) -> None:
        self._is_set = False

    def set_event(self) -> None:
        self._is_set = True

    def has_event(self) -> bool:
        return self._is_set


@contextmanager
def open_stop_signal(limits: Limits) -> Iterator[StopSignal]:
    """A signal for trials; its actor is started only for limits that may interrupt them."""
    if not limits.may_interrupt:
        yield StopSignal(None)
        return
    actor: Any = ray.remote(num_cpus=0)(_Event).remote()
    try:
        yield StopSignal(actor)
    finally:
        ray.kill(actor)


class QueueCallback(_NotStored, tune.Callback):
    """Reports to the queue, in the driver, what Tune reports."""

    def __init__(self, searcher: QueueSearcher, signal: StopSignal) -> None:
        self.searcher, self.queue, self.signal = searcher, searcher.queue, signal

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if self.queue.limits.is_stopping:
            self.signal.set_once()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.queue.on_start(self.searcher.jobs[trial.trial_id])

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        job = self.searcher.jobs.get(trial.trial_id)
        if job is not None and "row" in result:
            self.queue.on_epoch(job, result["row"])
        elif "outcome" in result:
            self.searcher.end_job(trial.trial_id, Outcome(**result["outcome"]), result["node"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        # A scheduler ended it; any other trial has reported its outcome before.
        self.searcher.end_job(trial.trial_id, Outcome(stopped=True))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        cause = describe_error(_read_error(trial), _name_node(trial.last_result or {}))
        self.searcher.end_job(trial.trial_id, Outcome(cause=cause))


class QueueStopper(_NotStored, tune.Stopper):
    """Ends trials that wait for a node when nothing runs and no other may start."""

    def __init__(self, searcher: QueueSearcher) -> None:
        self.searcher = searcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        queue = self.searcher.queue
        return queue.is_exhausted and queue.limits.is_stopping


def _read_error(trial: Any) -> str:
    """trial.get_error() has nothing yet: it reads what is synchronised later."""
    try:
        return Path(trial.error_file or "").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _name_node(result: Mapping[str, Any]) -> str:
    """Return the node of a trial, by what it reported last; nothing where it has not reported."""
    return f" on {result['hostname']} ({result['node_ip']})" if "node_ip" in result else ""


def describe_error(text: str, place: str = "") -> str:
    """Return the cause of a trial that ended with such a text of Ray's: a lost worker, which may go
    better on another try, or a node without memory. place: ` on NODE`, where that is known.
    """
    if any(sign in text for sign in LOW_ON_MEMORY):
        return causes.NODE_MEMORY
    words = " ".join(DETAILS.sub("", text).split())[-LONGEST:]  # of the end Ray speaks last
    return causes.describe_lost_worker(f"its worker{place} was lost: {words or 'nothing says why'}")
