"""The source as Ray Tune sees it: a search that suggests the next job, and what Tune then reports.

Tune stores both for a restore, which we never do: stored, they are empty.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from capsweep.config import code_identity
from capsweep.ledger import causes
from capsweep.sweep.executors import Source, ends, leaving
from capsweep.sweep.executors.placing import Nodes
from capsweep.sweep.job import Job, Outcome


class Feed(Searcher):
    """Suggests the jobs of a source. nodes: those of a cluster, None where it is this machine."""

    def __init__(self, source: Source, nodes: Nodes | None) -> None:
        super().__init__()
        self.source, self.nodes = source, nodes
        self.jobs: dict[str, Job] = {}
        self.refused: list[Job] = []

    def suggest(self, trial_id: str) -> Any:
        if self.nodes is not None and (grown := self.nodes.grown()) is not None:
            self.source.opens(grown)
        again = [] if self.source.limits.leaves else self.refused
        if not again and self.source.is_exhausted:
            return Searcher.FINISHED
        job = again.pop() if again else self.source.next()
        if job is None:
            return None
        self.jobs[trial_id] = job
        return {
            "signature": job.cell.signature,
            "job": self._sent(job).to_json(),
            **{name: getattr(job, name) for name in ("cpu", "gpu", "memory", "kind")},
            "avoided": [] if self.nodes is None else self.nodes.avoided(),
        }

    def _sent(self, job: Job) -> Job:
        """With what its worker must have."""
        wanted = None if self.nodes is None else self.nodes.wanted
        return replace(job, wanted=wanted, code=code_identity.numerics(job.cell.config))

    def ended(self, trial_id: str, outcome: Outcome, where: str | None = None) -> None:
        """Tell the source, or try another node, which nobody need know of but what it takes."""
        job = self.jobs.pop(trial_id, None)
        if job is None:
            return
        cause = outcome.cause
        if self.nodes is not None and where is not None and cause is not None:
            is_of_node = causes.kind_of_cause(cause) == causes.CauseKind.NODE
            if is_of_node and self.nodes.refuse(where, cause):
                self.refused.append(job)
                self.source.refused(job)
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

    def __deepcopy__(self, memo: dict[int, Any]) -> "Feed":
        return self


class Relay(tune.Callback):
    """Tells the source, in the driver, what Tune reports."""

    def __init__(self, feed: Feed, signal: leaving.Signal) -> None:
        self.feed, self.signal = feed, signal

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Relay":
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
        self.feed.ended(trial.trial_id, Outcome(cause=ends.cause(_said(trial))))


def _said(trial: Any) -> str:
    """What Ray says of an end. trial.get_error() has nothing yet: it reads what is synchronised
    later.
    """
    try:
        return Path(trial.error_file or "").read_text(errors="replace")
    except OSError:
        return ""
