"""The Ray Tune executor: it runs as many cells at once as the cluster's CPUs or GPUs allow.

Tune only schedules the jobs. The queue decides which job runs and which job is retried, and the
ledger holds the results. For Tune, the queue is a search algorithm, and each job is a trial. Each
command starts a new run of Tune, so an extended grid or an interrupted sweep needs no special code.
"""

import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from capsweep.runtime import ray_start
from capsweep.training import provenance

# Tune reads these variables when it is imported or started.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # the last report has no metric

from ray import tune
from ray.tune.execution import class_cache
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search import Searcher

from capsweep.config import code_identity, package_files
from capsweep.errors import NodeError
from capsweep.ledger import causes
from capsweep.runtime.ray_start import ray
from capsweep.statistics import metric_format
from capsweep.storage.scratch import make_scratch_prefix
from capsweep.sweep import cluster_nodes
from capsweep.sweep.queue import JobQueue
from capsweep.sweep.resources import Capacity
from capsweep.training import Row, RunHooks
from capsweep.training.run import Job, Outcome, run_job

logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the queue says why trials end

# Tune must not add environment variables to trials. If it did, Ray would start a new process for
# each trial, although idle workers exist. Ray would also pass AWS credentials on a command line,
# which is written to a log.
class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE = {}, set()
os.environ.setdefault("PL_DISABLE_FORK", "1")  # one of Tune's variables that is still needed

LONGEST = 200  # most characters of Ray's error text that a cause contains
# Parts of Ray's error text that a cause leaves out: colours, titles, ids of an actor, advice.
DETAILS = re.compile(
    r"(?m)\x1b\[[0-9;]*m|^Failure # .*|^\t\w+: .*|^The actor \w{16,} is unavail.*?: "
    r"|^The actor died unexpectedly.*|Some common causes include: .*"
)
LOW_ON_MEMORY = ("running low on memory", "NODE_OUT_OF_MEMORY")  # parts of messages of Ray 2.60


Work = Callable[[Job, RunHooks], Outcome]  # runs a job in a worker


def execute(
    queue: JobQueue,
    scratch: Path,
    config: Mapping[str, Any],
    work: Work = run_job,
    scheduler: TrialScheduler | None = None,
    declared: Capacity | None = None,
) -> None:
    """Run the jobs of a queue on Ray until the queue is exhausted.

    The function returns early after Ctrl-C, or if a Ray cluster that was started here is lost. The
    finished cells are in the ledger by then.

    Args:
        queue: The jobs.
        scratch: A folder of this machine for Tune's files.
        config: The configuration of one of the cells.
        work: The function that runs a job in a worker.
        scheduler: A scheduler of Tune, which may stop a trial early because of the metrics of its
            epochs. With None, no trial is stopped early.
        declared: The CPUs and GPUs of a local Ray cluster; None for all CPUs and GPUs of the
            machine.

    Raises:
        ConfigError: No node of the cluster can run the cells.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    imports = _choose_imports(queue, declared) if work is run_job else ()
    size = (None, None) if declared is None else (int(declared.cpu), int(declared.gpu))
    address = config["cluster"]["address"]
    with (
        suppress(ray_start.RayLostError),
        tempfile.TemporaryDirectory(dir=scratch, prefix=make_scratch_prefix("sweep")) as folder,
        package_files.staged_packages_for(address) as package,
        ray_start.connected(address, *size, package, imports),
        # The nodes of a joined cluster must meet these requirements.
        cluster_nodes.node_requirements(config) if address else nullcontext() as required,
    ):
        nodes = cluster_nodes.ClusterNodes(config["cluster"])
        capacity = nodes.read_capacity()
        # Tune reuses the process of a finished trial only for a trial that waits already. So the
        # number of trials that may wait is the number of CPUs, but at least 2.
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(2, int(capacity.cpu)))
        queue.set_capacity(capacity)
        trials = QueueTrials(queue, nodes)

        def train(config: Mapping[str, Any]) -> None:
            _run_trial(config, work, required)

        tune.run(
            tune.with_resources(train, make_resources),
            name="sweep",
            num_samples=-1,
            search_alg=trials,
            scheduler=scheduler,
            callbacks=[trials],
            stop=trials,
            reuse_actors=True,
            storage_path=folder,  # workers write nothing into it
            trial_dirname_creator=lambda trial: trial.trial_id,
            max_failures=0,  # the queue decides on retries
            raise_on_failed_trial=False,
            verbose=0,
        )
        nodes.check_usable()


def make_asha(metric: str, epochs: int, factor: int) -> TrialScheduler:
    """Return the ASHA scheduler, which stops trials that are behind others at the same epoch.

    Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020.

    Args:
        metric: The metric by which trials are compared.
        epochs: The epochs of a full trial.
        factor: When ASHA compares trials, about one of `factor` trials continues.
    """
    return ASHAScheduler(
        time_attr="epochs",
        metric=metric,
        mode="max" if metric_format.measure_of(metric).higher_is_better else "min",
        max_t=epochs + 1,  # with max_t=epochs, a trial would be ended before its test
        reduction_factor=factor,
    )


def _choose_imports(queue: JobQueue, declared: Capacity | None) -> tuple[str, ...]:
    """Return the modules that idle workers import before they get a cell.

    Ray starts a worker for each core. If there are fewer cells than cores, or if the machine has
    GPUs, many workers get no cell. Then no modules are returned.
    """
    machine = declared or Capacity(cpu=os.cpu_count() or 1, gpu=len(provenance.list_gpus()))
    has_cell_per_core = machine.gpu == 0 and queue.count_left >= machine.cpu
    return (__name__, "capsweep.training.fit") if has_cell_per_core else ()


def _run_trial(config: Mapping[str, Any], work: Work, required: Mapping[str, Any] | None) -> None:
    """Run a job in a worker, and report its epochs and its outcome to Tune."""
    job = Job.from_json(config["job"])

    def report_epoch(row: Row) -> bool:
        tune.report({**row, "epochs": row["epoch"] + 1, "row": row})
        return job.leave_at is not None and time.time() >= job.leave_at

    try:
        if required is not None:
            cluster_nodes.check_node(required, job.cell.config)
        outcome = work(job, RunHooks(on_epoch=report_epoch))
    except NodeError as error:
        outcome = Outcome(cause=causes.describe_cause(error))
    node = ray.get_runtime_context().get_node_id()
    tune.report({"outcome": vars(outcome), "node": node})


def make_resources(config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    """Return the resources of a trial as one bundle, which Ray places on a single node.

    Ray does not choose a node that refused to run the cells.
    """
    bundle = {name: amount for name, amount in config["resources"].items() if amount}
    if not (avoided := config["avoided"]):
        return tune.PlacementGroupFactory([bundle])
    selector = {"ray.io/node-id": f"!in({','.join(avoided)})"}
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=[selector])


class QueueTrials(tune.Callback, tune.Stopper, Searcher):
    """The connection between Tune and a job queue.

    A run of Tune uses the same instance as its search algorithm, as a callback, and as its stopper.

    Args:
        queue: The jobs.
        nodes: The nodes that run the jobs.

    Attributes:
        jobs: The job of each trial that has not ended, by Tune's trial id.
    """

    def __init__(self, queue: JobQueue, nodes: cluster_nodes.ClusterNodes) -> None:
        super().__init__()
        self.queue, self.nodes = queue, nodes
        self.jobs: dict[str, Job] = {}

    def suggest(self, trial_id: str) -> Any:
        """Return the queue's next job as a trial's configuration; None if no job can start now.

        If the queue is exhausted, return `Searcher.FINISHED`.
        """
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
        """Report the end of a job to the queue.

        If the node of the job refused the job, the queue keeps the job for another node.

        Args:
            trial_id: Tune's id of the trial.
            outcome: How the job ended.
            node: The id of the node that ran the job; empty if unknown.
        """
        job = self.jobs.pop(trial_id, None)
        if job is None:
            return
        cause = outcome.cause or ""
        if node and causes.classify_cause(cause) == causes.CauseKind.NODE:
            has_other = self.nodes.refuse(node, cause)
            outcome = Outcome(paused="waits for another node", ends_sweep=not has_other)
        self.queue.on_end(job, outcome)

    # Tune calls the next methods on its searcher and on its callbacks. Only the calls on a callback
    # pass the trial.

    def on_trial_start(self, *_: Any, trial: Any, **info: Any) -> None:
        """Report to the queue that a worker started the job."""
        self.queue.on_start(self.jobs[trial.trial_id])

    def on_trial_result(self, *_: Any, trial: Any = None, **info: Any) -> None:
        """Pass to the queue the epoch or the outcome that a worker reported."""
        result, job = info.get("result", {}), trial and self.jobs.get(trial.trial_id)
        if job is not None and "row" in result:
            self.queue.on_epoch(job, result["row"])
        elif job is not None and "outcome" in result:
            self.end_job(trial.trial_id, Outcome(**result["outcome"]), result["node"])

    def on_trial_complete(self, *_: Any, trial: Any = None, **info: Any) -> None:
        """Report to the queue that the scheduler stopped a trial.

        A trial that ended in another way has reported its outcome before, and is skipped.
        """
        if trial is not None:
            self.end_job(trial.trial_id, Outcome(stopped=True))

    def on_trial_error(self, *_: Any, trial: Any, **info: Any) -> None:
        """Report to the queue that a worker died, and why, as Ray's error file says."""
        last, text = trial.last_result or {}, ""
        with suppress(OSError):  # `trial.get_error()` would read a copy that is written later
            text = Path(trial.error_file or "").read_text(encoding="utf-8", errors="replace")
        place = f" on {last['hostname']} ({last['node_ip']})" if "node_ip" in last else ""
        self.end_job(trial.trial_id, Outcome(cause=describe_error(text, place)))

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False, because no reported result ends a trial."""
        return False

    def stop_all(self) -> bool:
        """Return whether Tune is to end trials that still wait for a node."""
        return self.queue.is_exhausted and self.queue.limits.is_stopping

    # Tune copies a stopper and stores its state for a restore, which capsweep never uses.

    def __deepcopy__(self, memo: dict[int, Any]) -> "QueueTrials":
        return self

    def get_state(self) -> dict[str, Any]:
        """Return no state, because the ledger holds everything that a later run needs."""
        return {}

    __getstate__ = get_state

    def save(self, checkpoint_path: str) -> None:
        """Write nothing, because the ledger holds everything that a later run needs."""
        return


def describe_error(text: str, place: str = "") -> str:
    """Return the cause of failure for a trial that Ray ended with an error text.

    If the text says that a node ran out of memory, this is the cause. Otherwise the cause is a lost
    worker.

    Args:
        text: Ray's error text, which may be empty.
        place: ` on NODE (ADDRESS)`, or empty if the node is unknown.
    """
    if any(sign in text for sign in LOW_ON_MEMORY):
        return causes.NODE_MEMORY
    words = " ".join(DETAILS.sub("", text).split())[-LONGEST:]  # Ray gives the reason at the end
    return f"{causes.LOST_WORKER}its worker{place} was lost: {words or 'no reason given'}"
