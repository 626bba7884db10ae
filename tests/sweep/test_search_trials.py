"""Trials of a search whose workers are lost: tried again, and not drawn anew."""

from pathlib import Path

import pytest
from job_queues import LOST, NODE_MEMORY, OUT_OF_MEMORY, Heard
from optuna.trial import TrialState

from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.store import open_store
from capsweep.sweep import choices, search, spec, study
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.search import StudySource
from capsweep.sweep.spec import Sweep

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
    return choices.apply(spec.load(str(file)), chosen)[0]


@pytest.fixture
def source(sweep: Sweep, tmp_path: Path) -> StudySource:
    """It without an executor."""
    return _opened(sweep, tmp_path)


def _opened(sweep: Sweep, folder: Path) -> StudySource:
    found = study.open_study(sweep, open_store(folder))
    return StudySource(sweep, found, Ledger(folder / "ledger"), Heard(), "none")


def _ended(source: StudySource, outcome: Outcome) -> Job:
    job = source.next()
    assert job is not None
    source.started(job)
    source.ended(job, outcome)
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
        choices.apply(spec.load(str(file)), choices.Choices(**typed))


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
