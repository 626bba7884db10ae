"""Trials of a search whose workers are lost: tried again, and not drawn anew."""

from pathlib import Path

import pytest
from job_queues import LOST, NODE_MEMORY, OUT_OF_MEMORY, Heard
from optuna.trial import TrialState

from capsweep.ledger.ledger import Ledger
from capsweep.ledger.store import open_store
from capsweep.sweep import choices, spec, study
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.search import StudySource

SEARCH = """\
question: Which rate?
kind: search
base: [experiment=digits]
seeds: [0]
search: {metric: val/error, trials: 4, sampler: random}
arms: {capsnet: {space: {optim.optimizer.lr: "interval(0.001, 0.01)"}}}
"""


@pytest.fixture
def source(tmp_path: Path) -> StudySource:
    """A search without an executor."""
    file = tmp_path / "find.yaml"
    file.write_text(SEARCH)
    chosen = choices.Choices(overrides=[f"places.storage={tmp_path}"])
    sweep = choices.apply(spec.load(str(file)), chosen)[0]
    found = study.open_study(sweep, open_store(tmp_path))
    return StudySource(sweep, found, Ledger(tmp_path / "ledger"), Heard(), "none")


def _ended(source: StudySource, outcome: Outcome) -> Job:
    job = source.next()
    assert job is not None
    source.started(job)
    source.ended(job, outcome)
    return job


@pytest.mark.parametrize("outcome", [LOST, NODE_MEMORY], ids=["lost", "memory of its node"])
def test_a_trial_whose_worker_was_taken_is_tried_again(
    source: StudySource, outcome: Outcome
) -> None:
    tried = [_ended(source, outcome).cell.signature for _ in range(2)]
    assert len(set(tried)) == 1
    assert [trial.state for trial in source.study.trials] == [TrialState.RUNNING]
    assert source.failed == {}


def test_a_setting_that_a_device_cannot_hold_has_failed(source: StudySource) -> None:
    _ended(source, OUT_OF_MEMORY)
    assert [trial.state for trial in source.study.trials] == [TrialState.FAIL]
