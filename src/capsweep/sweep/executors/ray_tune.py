"""Ray Tune: as many cells at once as the cluster's CPUs or GPUs allow.

Tune schedules and restarts; what is to be run and what came out is ours. The grid is a flat list of
due cells, a fresh Tuner each time, so an extended grid or an interrupted sweep is the ordinary
case.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Read by Ray when it is imported or started.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output prints a table even when silent
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray's ports listen on all interfaces

import ray
from ray import tune

from capsweep.sweep.executors import Listener
from capsweep.sweep.job import Job, Outcome, run_job

LOST_WORKER_RETRIES = 2  # a cell's own failure is an outcome and is never retried


def execute(jobs: Sequence[Job], listener: Listener) -> None:
    """Run the jobs through one Tuner; returns at Ctrl-C with the finished cells in the ledger."""
    config = jobs[0].cell.config
    scratch = Path(config["places"]["storage"]) / "ray"
    scratch.mkdir(parents=True, exist_ok=True)
    name = Path(tempfile.mkdtemp(dir=scratch, prefix="sweep-")).name
    _connect(config["cluster"]["address"])
    try:
        _tuner(jobs, listener, scratch, name).fit()
    finally:
        ray.shutdown()
        shutil.rmtree(scratch / name, ignore_errors=True)


def _connect(address: str | None) -> None:
    ray.init(
        # Without an address Ray would join whatever cluster this machine, or RAY_ADDRESS, last had,
        # and wait for it when it is gone; conf/cluster decides.
        address=address or "local",
        include_dashboard=None if address else False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _tuner(jobs: Sequence[Job], listener: Listener, storage: Path, name: str) -> tune.Tuner:
    grid = [{"signature": job.cell.signature, "job": job.to_json()} for job in jobs]
    resources = _resources(jobs[0].cell.config["resources"])
    return tune.Tuner(
        tune.with_resources(_train, resources),
        param_space={"cell": tune.grid_search(grid)},
        tune_config=tune.TuneConfig(
            reuse_actors=True,
            trial_name_creator=_signature,
            trial_dirname_creator=_signature,
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(storage),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=LOST_WORKER_RETRIES),
            callbacks=[_Relay(listener)],
        ),
    )


def _resources(wanted: Mapping[str, Any]) -> dict[str, float]:
    """gpu: auto is one whole GPU where the cluster has any."""
    gpu = wanted["gpu"]
    if gpu == "auto":
        gpu = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    return {"cpu": wanted["cpu"], "gpu": gpu}


def _signature(trial: Any) -> str:
    return trial.config["cell"]["signature"]


def _train(config: Mapping[str, Any]) -> None:
    """Runs in a worker."""
    job = Job.from_json(config["cell"]["job"])
    outcome = run_job(job, on_epoch=lambda row: tune.report({"row": row}))
    tune.report({"result": outcome.result, "cause": outcome.cause})


class _Relay(tune.Callback):
    """Tells the listener, in the driver, what Tune reports.

    Tune stores its callbacks for a restore, which we never do: stored, the relay has no listener.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Relay":
        return self

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.listener.started(_signature(trial))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if "row" in result:
            self.listener.epoch(_signature(trial), result["row"])
        elif "cause" in result:
            outcome = Outcome(result.get("result"), result["cause"])
            self.listener.ended(_signature(trial), outcome)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        cause = f"the worker was lost {LOST_WORKER_RETRIES + 1} times (killed, or out of memory)"
        self.listener.ended(_signature(trial), Outcome(None, cause))
