"""Ray Tune: as many cells at once as the cluster's CPUs or GPUs allow.

Tune schedules; what is to be run, what is tried again and what came out is ours. It draws jobs from
a queue, as it would draw trials from a search, in a fresh Tuner each time, so that an extended
grid or an interrupted sweep is the ordinary case.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from capsweep import ray_start
from capsweep.training import provenance

# Read by Tune when it is imported or started.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # the last report has none

from ray import tune
from ray.tune.execution import class_cache
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from capsweep.config import package_files
from capsweep.errors import NodeError
from capsweep.ledger import causes, lease
from capsweep.ray_start import ray
from capsweep.sweep.executors import LOCAL, Cluster, cluster_nodes
from capsweep.sweep.executors.cluster_nodes import ClusterNodes
from capsweep.sweep.executors.tune_adapter import (
    QueueCallback,
    QueueSearcher,
    QueueStopper,
    StopSignal,
    make_resources,
    open_stop_signal,
)
from capsweep.sweep.gpu_packing import Capacity
from capsweep.sweep.job import Job, Outcome, run_job
from capsweep.sweep.queue import JobQueue
from capsweep.training.run_hooks import Row, RunHooks

logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the queue says why trials end

# Tune would hand these to workers in a command line, which ends in a log too. Workers have the
# environment of their node.
SECRETS = {name for name in class_cache.ENV_VARS_TO_PROPAGATE if name.startswith("AWS_")}
class_cache.ENV_VARS_TO_PROPAGATE -= SECRETS

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
        tempfile.TemporaryDirectory(dir=scratch, prefix="sweep-") as folder,
        _connected(cluster, declared, imports) as required,
        open_stop_signal(queue.limits) as signal,
    ):
        lease.sign_folder(Path(folder))
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
                trial_name_creator=_name_trial,
                trial_dirname_creator=_name_folder,
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=folder,  # nothing that workers write comes there
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),  # the queue decides on retries
                callbacks=[QueueCallback(searcher, signal)],
                stop=QueueStopper(searcher),
            ),
        ).fit()
        nodes.check_usable()


def make_asha(metric: str, mode: str, epochs: int, grace: int, factor: int) -> TrialScheduler:
    """Ends trials early whose metric is not among the best at the same epoch (Li et al. 2020)."""
    return ASHAScheduler(
        time_attr="epochs",
        metric=metric,
        mode=mode,
        max_t=epochs + 1,  # at max_t it would end a trial before its test
        grace_period=min(grace, epochs),
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


def _name_trial(trial: Any) -> str:
    return trial.config["signature"]


def _name_folder(trial: Any) -> str:
    return f"{_name_trial(trial)}-{trial.trial_id}"  # a cell that is tried again: another trial


def _run_trial(
    config: Mapping[str, Any], work: Work, signal: StopSignal, required: Mapping[str, Any] | None
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
