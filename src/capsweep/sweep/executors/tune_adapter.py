"""The queue of jobs as Ray Tune sees it: a search that suggests the next job, callbacks that report
to the queue, why a trial failed, in one line, and how running trials learn that they are to leave.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from capsweep.config import code_identity
from capsweep.ledger import causes
from capsweep.ray_start import exceptions, ray
from capsweep.sweep.executors.cluster_nodes import ClusterNodes
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.limits import Limits
from capsweep.sweep.queue import JobQueue

WORKER_GONE = "its worker process is gone (killed, or its node was lost)"
NODE_LABEL = "ray.io/node-id"
LONGEST = 300  # characters of what Ray says
ASK_SECONDS = 1.0  # between two questions of a trial, whose epochs may be short
ANSWER_SECONDS = 10.0  # that a question may take
RETRY_SECONDS = 60.0  # after a question without an answer: the actor may be gone
# How Ray 2.60 words the ends of actors.
LOW_ON_MEMORY = ("running low on memory", "NODE_OUT_OF_MEMORY")
DETAILS = ("Node Id: ", "Worker exit type: ")


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
            "signature": job.cell.signature,
            "job": replace(job, code=code_identity.numerics(job.cell.config)).to_json(),
            **{name: getattr(job, name) for name in ("cpu", "gpu", "memory")},
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

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep is resumed from its ledger")


def make_resources(config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    """The resources of a trial; one bundle is on one node."""
    bundle = {"CPU": config["cpu"], "GPU": config["gpu"], "memory": config["memory"]}
    bundle = {name: amount for name, amount in bundle.items() if amount}
    if not config["avoided"]:
        return tune.PlacementGroupFactory([bundle])
    selector = {NODE_LABEL: f"!in({','.join(config['avoided'])})"}
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
            pause = ASK_SECONDS
            try:
                answer = ray.get(self._event.has_event.remote(), timeout=ANSWER_SECONDS)
                self._is_set = bool(answer)
            except exceptions.RayError:
                pause = RETRY_SECONDS
            self._next_ask = time.monotonic() + pause
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
        self.searcher.end_job(trial.trial_id, Outcome(cause=describe_error(_read_error(trial))))


class QueueStopper(_NotStored, tune.Stopper):
    """Ends trials that wait for a node when nothing runs and they are needed no more."""

    def __init__(self, searcher: QueueSearcher) -> None:
        self.searcher = searcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        queue = self.searcher.queue
        return queue.is_exhausted and (queue.limits.is_stopping or bool(self.searcher.jobs))


def _read_error(trial: Any) -> str:
    """trial.get_error() has nothing yet: it reads what is synchronised later."""
    try:
        return Path(trial.error_file or "").read_text(errors="replace")
    except OSError:
        return ""


def describe_error(text: str) -> str:
    """The cause of a trial that ended with such a text of Ray's: a lost worker, which may go better
    on another try, or a node without memory.
    """
    if any(sign in text for sign in LOW_ON_MEMORY):
        return causes.NODE_MEMORY
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return causes.describe_lost_worker(WORKER_GONE)
    hosts = [line.removeprefix("ip: ") for line in lines if line.startswith("ip: ")]
    details = [n for n, line in enumerate(lines) if any(sign in line for sign in DETAILS)]
    detail = " ".join(lines[details[0] :]) if details else lines[-1]
    host = f" on {hosts[0]}" if hosts else ""
    why = f"its worker{host} was lost: {detail}"
    return causes.describe_lost_worker(why if len(why) <= LONGEST else f"{why[: LONGEST - 1]}…")
