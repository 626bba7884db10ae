"""Trials of a search whose workers are lost: tried again, and not drawn anew."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from job_queues import LOST, NODE_MEMORY, OUT_OF_MEMORY, RecordingListener
from optuna.trial import TrialState

from capsweep.errors import ConfigError
from capsweep.ledger import lease
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.storage.stores import open_store
from capsweep.sweep import choices, search, spec, study
from capsweep.sweep import queue as queues
from capsweep.sweep.job import Job, Outcome, run_job
from capsweep.sweep.search import StudySource
from capsweep.sweep.spec import Sweep
from capsweep.training.run_hooks import RunHooks

SEARCH = """\
question: Which rate?
kind: search
base: [experiment=digits]
seeds: [0]
search: {metric: val/error, trials: 4, sampler: random}
arms: {capsnet: {space: {optim.optimizer.lr: "interval(0.001, 0.01)"}}}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A search that remembers in tmp_path."""
    file = tmp_path / "find.yaml"
    file.write_text(SEARCH)
    chosen = choices.Choices(overrides=[f"places.storage={tmp_path}"])
    return choices.load_sweep(str(file), chosen)


@pytest.fixture
def source(sweep: Sweep, tmp_path: Path) -> StudySource:
    """It without an executor."""
    return _opened(sweep, tmp_path)


FINISHED = Outcome(result={"metrics": {"val/error": 0.1}})


def _opened(sweep: Sweep, folder: Path) -> StudySource:
    found = study.open_study(sweep, open_store(folder))
    return StudySource(sweep, found, Ledger(folder / "ledger"), RecordingListener(), "none")


def _ended(source: StudySource, outcome: Outcome) -> Job:
    job = source.next_job()
    assert job is not None
    source.on_start(job)
    source.on_end(job, outcome)
    return job


def test_a_metric_that_no_trial_measures_is_refused_before_one_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "find.yaml"
    file.write_text(SEARCH.replace("val/error", "val/accuracy"))
    with pytest.raises(
        ConfigError, match=r"search\.metric: val/accuracy is not measured; .*val/err"
    ):
        search.check(spec.load(str(file)))


@pytest.mark.parametrize(
    ("typed", "variable"), [({"routing": "dynamic"}, "ROUTING"), ({"metric": "val/loss"}, "METRIC")]
)
def test_what_leaves_places_out_is_refused_for_a_search(
    typed: dict[str, str], variable: str, tmp_path: Path
) -> None:
    file = tmp_path / "find.yaml"
    file.write_text(SEARCH)
    with pytest.raises(ConfigError, match=f"^{variable}: find.yaml is a search"):
        choices.load_sweep(str(file), choices.Choices(**typed))


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


def test_a_trial_that_its_driver_was_killed_in_drawing_counts_not(
    sweep: Sweep, tmp_path: Path
) -> None:
    """Optuna writes a trial down before what is drawn for it."""
    study.open_study(sweep, open_store(tmp_path)).ask()
    source = _opened(sweep, tmp_path)
    tried = [_ended(source, Outcome(result={"metrics": {"val/error": 0.1}})) for _ in range(4)]
    assert len({job.cell.signature for job in tried}) == 4
    assert source.is_exhausted
    seen = study.remembered(sweep, open_store(tmp_path))
    assert (seen.seen, len(seen.complete), seen.failed) == (4, 4, 0)


def test_trials_are_not_spent_on_edited_code(source: StudySource) -> None:
    job = source.next_job()
    assert job is not None
    source.on_start(job)
    source.on_end(job, run_job(replace(job, code="0" * 12), RunHooks()))
    assert source.next_job() is None
    assert source.is_exhausted
    assert (source.count_left, source.failed) == (4, {})
    assert [trial.state for trial in source.study.trials] == [TrialState.RUNNING]


def test_a_trial_that_another_process_runs_is_waited_for(
    source: StudySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)
    ledger = source.ledger
    job = source.next_job()
    assert job is not None
    assert ledger.disk is not None
    with lease.hold_lease(ledger.disk, job.cell.signature):
        source.on_end(job, Outcome(elsewhere="cell is being run by process 7 on far"))
        for _ in range(3):
            _ended(source, FINISHED)
        assert source.next_job() is None
        assert not source.is_exhausted
        assert source.count_left == 1
        done = json.dumps({"metrics": {"val/error": 0.2}}).encode()
        ledger.store.write(f"{folder_of(job.cell.signature)}/result.json", done)
        assert source.next_job() is None
    assert source.is_exhausted
    assert source.failed == {}
    assert [trial.state for trial in source.study.trials] == [TrialState.COMPLETE] * 4
    assert source.study.trials[0].value == 0.2


def test_a_trial_whose_other_process_is_gone_is_run_here(
    source: StudySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)
    source._awaited_cells.monitor.lease = 0.05
    job = source.next_job()
    assert job is not None
    owner = {"host": "far", "machine": "another boot", "pid": 1, "started": "1"}
    content = json.dumps({"owner": owner, "beat": 9}).encode()
    source.ledger.store.write(f"claims/{job.cell.signature}.000004", content)
    source.on_end(job, Outcome(elsewhere="on far"))
    _ended(source, FINISHED)
    time.sleep(0.1)
    again = source.next_job()
    assert again is not None
    assert (again.cell.signature, again.dead) == (job.cell.signature, "4 9 another boot 1 1")


def test_a_trial_that_another_driver_has_told_is_not_told_again(source: StudySource) -> None:
    job = source.next_job()
    assert job is not None
    source.study.tell(0, 0.3)
    source.on_end(job, FINISHED)
    assert [trial.value for trial in source.study.trials] == [0.3]
