"""Ray Tune: as many cells at once as the cluster's CPUs or GPUs allow.

Tune schedules; what is to be run, what is tried again and what came out is ours. It draws jobs from
a queue, as it would draw trials from a search, in a fresh run each time, so that an extended grid
or an interrupted sweep is the ordinary case.
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
from capsweep.runtime.ray_start import ray
from capsweep.statistics import metric_format
from capsweep.storage.scratch import own_prefix
from capsweep.sweep import cluster_nodes
from capsweep.sweep.cluster_nodes import ClusterNodes
from capsweep.sweep.queue import JobQueue
from capsweep.sweep.resources import Capacity
from capsweep.training import Row, RunHooks
from capsweep.training.run import Job, Outcome, run_job

logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the queue says why trials end

# Trials have the environment of their worker. Tune would give them variables of their own: then Ray
# starts another process for each, beside its idle workers; and it would hand AWS's credentials to
# them in a command line, which ends in a log too.
class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE = {}, set()
os.environ.setdefault("PL_DISABLE_FORK", "1")  # which Tune sets otherwise

LONGEST = 200  # characters of what Ray says
# Of it: colours, a title, ids of an actor.
DETAILS = re.compile(
    r"(?m)\x1b\[[0-9;]*m|^Failure # .*|^\t\w+: .*|^The actor \w{16,} is unavail.*?: "
)
LOW_ON_MEMORY = ("running low on memory", "NODE_OUT_OF_MEMORY")  # as Ray 2.60 words it


Work = Callable[[Job, RunHooks], Outcome]  # what a worker does with a job


def execute(
    queue: JobQueue,
    scratch: Path,
    config: Mapping[str, Any],
    work: Work = run_job,
    scheduler: TrialScheduler | None = None,
    declared: Capacity | None = None,
) -> None:
    """Run jobs until the queue has no more; returns at Ctrl-C, and when the Ray of this machine is
    lost, with finished cells in the ledger.

    scratch: a folder of this machine. config: of a cell. scheduler: may stop trials early, by their
    epoch rows. declared: what a local Ray is told that this machine has.
    Raises ConfigError where a cluster has no node that can run the cells.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    imports = _choose_imports(queue, declared) if work is run_job else ()
    with (
        suppress(ray_start.RayLostError),
        tempfile.TemporaryDirectory(dir=scratch, prefix=own_prefix("sweep")) as folder,
        _connected(config, declared, imports) as required,
    ):
        nodes = ClusterNodes(config["cluster"])
        capacity = nodes.read_capacity()
        # As many waiting trials as slots: Tune keeps the process of a finished trial for a
        # waiting one alone.
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
            storage_path=folder,  # nothing that workers write comes there
            trial_dirname_creator=lambda trial: trial.trial_id,
            max_failures=0,  # the queue decides on retries
            raise_on_failed_trial=False,
            verbose=0,
        )
        nodes.check_usable()


def make_asha(metric: str, epochs: int, factor: int) -> TrialScheduler:
    """Return a scheduler that ends trials early whose metric is not among the best at the same
    epoch (Li et al. 2020).
    """
    return ASHAScheduler(
        time_attr="epochs",
        metric=metric,
        mode="max" if metric_format.measure_of(metric).higher_is_better else "min",
        max_t=epochs + 1,  # at max_t it would end a trial before its test
        reduction_factor=factor,
    )


def _choose_imports(queue: JobQueue, declared: Capacity | None) -> tuple[str, ...]:
    """Return the modules that waiting workers import; none where they outnumber the cells: Ray
    starts a worker for each core, and cells that use GPUs are as few as these.
    """
    machine = declared or Capacity(cpu=os.cpu_count() or 1, gpu=len(provenance.list_gpus()))
    has_cell_per_core = machine.gpu == 0 and queue.count_left >= machine.cpu
    return (__name__, "capsweep.training.fit") if has_cell_per_core else ()


@contextmanager
def _connected(
    config: Mapping[str, Any], declared: Capacity | None, imports: Sequence[str]
) -> Iterator[dict[str, Any] | None]:
    """Start or join a Ray. Gives what is required of its nodes; None: nothing of this machine."""
    if (address := config["cluster"]["address"]) is None:
        size = (None, None) if declared is None else (int(declared.cpu), int(declared.gpu))
        with ray_start.connected(None, *size, imports=imports):
            yield None
        return
    with (
        package_files.staged_packages_for(address) as package,
        ray_start.connected(address, package=package),
        cluster_nodes.node_requirements(config) as required,
    ):
        yield required


def _run_trial(config: Mapping[str, Any], work: Work, required: Mapping[str, Any] | None) -> None:
    """Run a job in a worker, and report its epochs and its outcome."""
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
    """Return the resources of a trial; one bundle is on one node."""
    bundle = {name: amount for name, amount in config["resources"].items() if amount}
    if not (avoided := config["avoided"]):
        return tune.PlacementGroupFactory([bundle])
    selector = {"ray.io/node-id": f"!in({','.join(avoided)})"}
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=[selector])


class QueueTrials(tune.Callback, tune.Stopper, Searcher):
    """A queue as Tune sees it: which trial is next, what trials report, and when those are ended
    that wait for a node. nodes: those that run them.
    """

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
        if node and causes.classify_cause(cause) == causes.CauseKind.NODE:
            has_other = self.nodes.refuse(node, cause)
            outcome = Outcome(paused="waits for another node", ends_sweep=not has_other)
        self.queue.on_end(job, outcome)

    # Tune tells a searcher and a callback of the same events; only a callback is told the trial.

    def on_trial_start(self, *_: Any, trial: Any, **info: Any) -> None:
        self.queue.on_start(self.jobs[trial.trial_id])

    def on_trial_result(self, *_: Any, trial: Any = None, **info: Any) -> None:
        result, job = info.get("result", {}), trial and self.jobs.get(trial.trial_id)
        if job is not None and "row" in result:
            self.queue.on_epoch(job, result["row"])
        elif job is not None and "outcome" in result:
            self.end_job(trial.trial_id, Outcome(**result["outcome"]), result["node"])

    def on_trial_complete(self, *_: Any, trial: Any = None, **info: Any) -> None:
        if trial is not None:  # a scheduler ended it; any other has reported its outcome before
            self.end_job(trial.trial_id, Outcome(stopped=True))

    def on_trial_error(self, *_: Any, trial: Any, **info: Any) -> None:
        last, text = trial.last_result or {}, ""
        with suppress(OSError):  # its get_error() reads what is synchronised later
            text = Path(trial.error_file or "").read_text(encoding="utf-8", errors="replace")
        place = f" on {last['hostname']} ({last['node_ip']})" if "node_ip" in last else ""
        self.end_job(trial.trial_id, Outcome(cause=describe_error(text, place)))

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.queue.is_exhausted and self.queue.limits.is_stopping

    # Tune copies a stopper, and stores all of it for a restore, which we never do.

    def __deepcopy__(self, memo: dict[int, Any]) -> "QueueTrials":
        return self

    def get_state(self) -> dict[str, Any]:
        return {}

    __getstate__ = get_state

    def save(self, checkpoint_path: str) -> None:
        return


def describe_error(text: str, place: str = "") -> str:
    """Return the cause of a trial that ended with such a text of Ray's: a lost worker, which may go
    better on another try, or a node without memory. place: ` on NODE`, where that is known.
    """
    if any(sign in text for sign in LOW_ON_MEMORY):
        return causes.NODE_MEMORY
    words = " ".join(DETAILS.sub("", text).split())[-LONGEST:]  # of the end Ray speaks last
    return causes.describe_lost_worker(f"its worker{place} was lost: {words or 'nothing says why'}")
