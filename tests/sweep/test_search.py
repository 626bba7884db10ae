"""A search: what it refuses, what it takes from the ledger, and trials whose workers are lost."""

import json
from pathlib import Path

import pytest
from job_queues import RecordingListener, start_job
from optuna.trial import TrialState

from capsweep import cli
from capsweep.config.overrides import Interval
from capsweep.errors import ConfigError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import render, table
from capsweep.report.table import ResultTable
from capsweep.sweep import choices, expand, search, trials
from capsweep.sweep import queue as queues
from capsweep.sweep.estimates import Limits
from capsweep.sweep.search import TrialQueue
from capsweep.sweep.spec import Sweep
from capsweep.tracking.content import make_labels
from capsweep.training.run import Job, Outcome

SEARCH = """\
question: Which rate?
kind: search
base: [experiment=digits]
seeds: [0]
search: {metric: val/error, trials: 4, sampler: random}
arms: {capsnet: {space: {optim.optimizer.lr: "interval(0.001, 0.01)"}}}
"""
GRID = {"ROUTING": "dynamic", "METRIC": "val/loss", "EXCLUDE": "epochs=1"}  # words of a grid
TWO_ARMS = f"""\
{SEARCH[: SEARCH.index("arms")]}
arms:
  capsnet: {{space: {{optim.optimizer.lr: "interval(0.001, 0.01)", routing.num_iters: [1, 3]}}}}
  cnn:
    fixed: [model=cnn_small]
    space: {{model.conv.channels: [[8, 8], [4, 4]], model.dropout: "interval(0.1, 0.5)"}}
"""


def write_search(folder: Path, text: str = SEARCH, **typed: str) -> Sweep:
    """A search whose ledger is in the folder."""
    file = folder / "find.yaml"
    file.write_text(text)
    return choices.load_sweep(str(file), {"STORAGE": str(folder), **typed})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(tmp_path / "ledger")


def open_queue(sweep: Sweep, ledger: Ledger) -> TrialQueue:
    """The trials of a search without an executor."""
    known = trials.read_trials(sweep, ledger)
    return TrialQueue(sweep, known, ledger, RecordingListener(), "none", Limits())


@pytest.fixture
def queue(tmp_path: Path, ledger: Ledger) -> TrialQueue:
    """The trials of the search above."""
    return open_queue(write_search(tmp_path), ledger)


def list_states(queue: TrialQueue) -> list[TrialState]:
    """How the trials stand, in the order in which they were drawn."""
    return [trial.state for trial in queue.study.trials]


def write_cell(ledger: Ledger, job: Job, **files: object) -> None:
    """What a worker leaves of a trial in the ledger; begun, unless `files` say how it ended."""
    begun = f"2026-01-01T00:00:{len(ledger.list_signatures()):02}+00:00"
    provenance = {"overrides": list(job.cell.overrides), "started": begun}
    for name, content in {"provenance.json": provenance, **files}.items():
        path = f"{folder_of(job.cell.signature)}/{name}"
        whole = stored_files.with_digests(content, {}) if name == "result.json" else content
        ledger.store.write(path, json.dumps(whole).encode())


def finish_cell(ledger: Ledger, job: Job, value: float) -> None:
    """A finished trial in the ledger."""
    write_cell(ledger, job, **{"result.json": {"metrics": {"val/error": value}}})


def try_trials(queue: TrialQueue, count: int) -> list[Job]:
    """Begin trials: two finish, one ends early, one fails, the others are cut short."""
    jobs = [start_job(queue) for _ in range(count)]
    for job, value in zip(jobs, (0.3, 0.1), strict=False):
        finish_cell(queue.ledger, job, value)
    write_cell(queue.ledger, jobs[2], **{"stopped.json": {"epochs": 1}})
    write_cell(queue.ledger, jobs[3], **{"error.txt": "ValueError: no"})
    for job in jobs[4:]:
        write_cell(queue.ledger, job)
    return jobs


def write_space(space: str) -> str:
    """The text of a search of one arm with this space."""
    return SEARCH[: SEARCH.index("arms")] + f"arms: {{capsnet: {{space: {space}}}}}\n"


def test_intervals_belong_to_a_search(tmp_path: Path) -> None:
    lr = 'optim.optimizer.lr: "tag(log, interval(0.0001, 0.01))"'
    iterations = 'routing.num_iters: "int(interval(1, 5))"'
    text = write_space(f"{{{lr}, {iterations}, batch_size: [16, 32]}}")
    space = write_search(tmp_path, text).arms[0]
    assert space.intervals == (
        Interval("optim.optimizer.lr", 0.0001, 0.01, log=True, integer=False),
        Interval("routing.num_iters", 1, 5, log=False, integer=True),
    )
    assert [axis.key for axis in space.axes] == ["batch_size"]


LR = "{optim.optimizer.lr: [0.1]}"
REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({}, "{dataset: [digits, mnist]}", "dataset=mnist: .*needs validation examples"),
    ({"DATASET": "smallnorb_azimuth"}, "{batch_size: [8]}", "val/error needs validation examples"),
    ({}, '{batch_size: "int(interval(8, 2000000))"}', r"batch_size must be in .* got 2000000"),
    *(({word: value}, LR, r": find\.yaml is a search") for word, value in GRID.items()),
    ({}, '{optim.optimizer.lr: "tag(lgo, interval(0.1, 0.2))"}', "may have only the tag log"),
    ({}, '{optim.optimizer.lr: "interval(0.1, inf)"}', "two finite numbers"),
    ({}, "{zip: {epochs: [1, 2], batch_size: [64, 32]}}", "a search has no zip"),
    ({}, "{}, optional: true", r"capsnet.optional: no such key; have fixed, space, matched$"),
]


@pytest.mark.parametrize(("typed", "space", "message"), REFUSED)
def test_what_no_search_can_be_is_refused_before_a_trial_starts(
    typed: dict[str, str], space: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        expand.check_search(write_search(tmp_path, write_space(space), **typed))


def test_a_trial_that_another_process_ended_early_is_not_trained_again(
    queue: TrialQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)
    job = start_job(queue)
    queue.on_end(job, Outcome(elsewhere="cell is being run by process 7 on far"))
    write_cell(queue.ledger, job, **{"stopped.json": {"epochs": 2}})
    assert start_job(queue).cell.signature != job.cell.signature
    assert list_states(queue)[0] == TrialState.PRUNED
    content = queue.ledger.store.read(f"{folder_of(job.cell.signature)}/stopped.json") or b""
    assert json.loads(content) == {"epochs": 2}


def test_a_known_setting_that_is_drawn_again_is_no_trial_of_its_own(
    tmp_path: Path, ledger: Ledger
) -> None:
    sweep = write_search(tmp_path, write_space("{batch_size: [8]}"))
    queue = open_queue(sweep, ledger)
    job = start_job(queue)
    finish_cell(ledger, job, 0.5)
    queue.on_end(job, Outcome(result={"metrics": {"val/error": 0.5}}))
    assert queue.next_job() is None
    assert search.describe_end(queue).lines == (
        "3 of 4 draws repeated a known setting; type the same command again to continue",
        "1 trial is finished",
    )


def test_an_early_end_is_noted_with_its_epochs(queue: TrialQueue) -> None:
    job = start_job(queue)
    queue.on_epoch(job, {"epoch": 2, "val/error": 0.5})
    queue.on_end(job, Outcome(stopped=True))
    assert list_states(queue) == [TrialState.PRUNED]
    content = queue.ledger.store.read(f"{folder_of(job.cell.signature)}/stopped.json") or b""
    assert json.loads(content)["epochs"] == 3


@pytest.mark.parametrize("text", [SEARCH, TWO_ARMS])
@pytest.mark.parametrize("sampler", ["random", "optuna"])
def test_the_next_driver_finds_in_the_ledger_what_earlier_ones_have_tried(
    text: str, sampler: str, tmp_path: Path, ledger: Ledger
) -> None:
    text = text.replace("sampler: random", f"sampler: {sampler}").replace("trials: 4", "trials: 6")
    sweep = write_search(tmp_path, text)
    jobs = try_trials(open_queue(sweep, ledger), 5)
    second = open_queue(sweep, ledger)
    states = ["COMPLETE", "COMPLETE", "PRUNED", "FAIL", "WAITING"]
    assert [state.name for state in list_states(second)] == states
    assert second.study.best_value == 0.1
    assert second.count_left == 2
    drawn = [start_job(second).cell.signature for _ in range(2)]
    assert drawn[0] == jobs[4].cell.signature  # which was cut short
    assert drawn[1] not in {job.cell.signature for job in jobs}
    known = trials.read_trials(sweep, ledger)
    assert [trial.has_ended for trial in known] == [True] * 4 + [False]
    best, worst = trials.rank_trials(second.search, known)
    assert (best.value, worst.value) == (0.1, 0.3)
    arm = next(arm for arm in sweep.arms if arm.name == best.point.arm)
    point = expand.make_point(arm, best.place, 0)
    assert point.cell.signature == best.point.cell.signature == jobs[1].cell.signature


def tabulate(sweep: Sweep, ledger: Ledger) -> ResultTable:
    """The table of the trials that a ledger has."""
    tabled = trials.tabulate_trials(sweep, trials.read_trials(sweep, ledger))
    return table.build_table(*tabled, ledger)


def test_trials_are_rows_of_their_arms_the_best_first_and_live_lines_name_them_alike(
    tmp_path: Path, ledger: Ledger
) -> None:
    queue = open_queue(sweep := write_search(tmp_path, TWO_ARMS), ledger)
    jobs = try_trials(queue, 4)
    answer = tabulate(sweep, ledger)
    points = answer.points
    assert [p.cell.signature for p in points] == [jobs[i].cell.signature for i in (1, 0, 3)]
    assert [point.title for point in points] == [
        queue.progress.names[p.cell.signature] for p in points
    ]
    assert [row.coordinates[0] for row in answer.rows] == [point.arm for point in points]
    text = render.render_markdown(answer)
    assert "| 0/1 seed; failed: " in text
    assert "4 of 4 trials seen, 2 complete, 1 ended early and are not shown, 1 failed" in text
    assert " to capsnet" not in text  # a search compares with nothing
    finish_cell(ledger, jobs[0], 0.1)
    tied = "2 trials share the best val/error, so it cannot rank them"
    assert (tied in text, tied in render.render_markdown(tabulate(sweep, ledger))) == (False, True)


def test_a_result_of_code_that_did_not_measure_the_metric_is_a_trial_without_a_value(
    tmp_path: Path, ledger: Ledger
) -> None:
    queue = open_queue(sweep := write_search(tmp_path), ledger)
    write_cell(ledger, start_job(queue), **{"result.json": {"metrics": {"test/error": 0.1}}})
    again = open_queue(sweep, ledger)
    assert list_states(again) == [TrialState.FAIL]
    assert (again.count_left, tabulate(sweep, ledger).groups) == (3, [])


def test_a_plan_names_candidates_arms_trials_left_and_what_they_take(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_search(tmp_path, TWO_ARMS)
    first = expand.check_search(sweep)[0]
    timed = {"seconds": {"fit": 30, "total": 36}, "steps": 10, "shape": first.cell.shape}
    science = {"metrics": {"val/error": 0.5}, "parameters": 1, "epochs": 1, **timed}
    write_cell(ledger, Job(first.cell, make_labels(first.cell)), **{"result.json": science})
    words = ["plan", str(sweep.path), f"STORAGE={tmp_path}"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "capsnet · routing.num_iters=3 · optim.optimizer.lr=0.001" in printed
    assert "cnn · model.conv.channels=[8,8] · model.dropout=0.5" in printed
    assert "4 trials, 1 ended before (1 done); 3 left to draw (random); arms: capsnet" in printed
    assert "\ntime: " in printed
    assert cli.main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["trials_due"] == 3
    assert not any(cell["due"] for cell in content["cells"])


def test_trials_count_for_every_search_whose_space_has_them(tmp_path: Path, ledger: Ledger) -> None:
    sweep = write_search(tmp_path)
    queue = open_queue(sweep, ledger)
    for value in (0.3, 0.1):
        finish_cell(ledger, start_job(queue), value)
    count = lambda text: len(trials.read_trials(write_search(tmp_path, text), ledger))  # noqa: E731
    assert count(SEARCH.replace("0.01)", "0.1)").replace("find", "other")) == 2
    assert count(SEARCH.replace("interval(0.001, 0.01)", "interval(1.0, 2.0)")) == 0
    assert count(SEARCH.replace("[experiment=digits]", "[experiment=digits, epochs=2]")) == 0
    assert count(SEARCH.replace('"interval(0.001, 0.01)"', "[0.5]")) == 0


@pytest.mark.parametrize("overrides", [3, ["no override"], ["seed=1,2"], []])
def test_a_cell_whose_overrides_were_altered_is_no_trial(
    overrides: object, queue: TrialQueue, ledger: Ledger
) -> None:
    job = start_job(queue)
    write_cell(ledger, job, **{"provenance.json": {"overrides": overrides}})
    assert trials.read_trials(queue.sweep, ledger) == []
