"""What `capsweep sweep` and `plan` print and return, with real cells: failures, results of other
code, budgets, parts of an array, searches.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep import cli
from capsweep.ledger import stored_files
from capsweep.runtime.terminal import format_command

Capture = pytest.CaptureFixture[str]

SEARCH = """\
question: Which learning rate?
kind: search
base: [epochs=4, limit_batches=4, model.conv.channels=8, model.primary.types=2, logger=csv,
       trainer.accelerator=cpu]
seeds: [0]
search: {metric: val/error, trials: 8, scheduler: asha, reduction_factor: 2}
arms:
  capsnet: {space: {optim.optimizer.lr: "tag(log, interval(0.00001, 0.03))", batch_size: [8, 16]}}
"""


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """A search whose scheduler ends trials early."""
    path = tmp_path / "find.yaml"
    path.write_text(SEARCH)
    return path


Sweep = Callable[..., str]


@pytest.fixture
def sweep(storage: Path, capsys: Capture) -> Sweep:
    """What `capsweep sweep` prints in this process, errors last."""

    def run_command(file: Path, *more: str, status: int = 0) -> str:
        capsys.readouterr()
        where = ["EXECUTOR=local", f"STORAGE={storage}", "logger=csv"]
        assert cli.main(["sweep", str(file), *where, *more]) == status
        return "".join(capsys.readouterr())

    return run_command


def read_times(storage: Path) -> dict[str, int]:
    """When each finished cell was written."""
    return {p.parent.name: p.stat().st_mtime_ns for p in storage.glob("ledger/*/*/result.json")}


def test_a_plan_needs_no_data_runs_nothing_and_writes_nothing(
    storage: Path, capsys: Capture
) -> None:
    choices = ["DATASET=mnist", "DATA_DIR=/nowhere", f"STORAGE={storage}"]
    assert cli.main(["plan", "ablation", *choices]) == 0
    assert "15 cells: 0 done, 15 missing, 0 failed" in capsys.readouterr().out
    assert not storage.exists()


def test_a_failed_arm_is_a_gap_with_its_cause_and_is_not_tried_again(
    small_sweep: Path, storage: Path, tmp_path: Path, sweep: Sweep, capsys: Capture
) -> None:
    """The CNN arm diverges to NaN; the CapsNet arm has one place."""
    text = small_sweep.read_text().replace('"model.hidden=8"', '"optim.optimizer.lr=1.0e+30"')
    file = tmp_path / "diverging.yaml"
    file.write_text(text.replace("[1, 3]", "[1]").replace("[0, 0.0005]", "[0]"))
    output = sweep(file, status=1)
    assert "2 of 4 cells failed" in output
    why = [line.removeprefix("  why: ") for line in output.splitlines() if "  why: " in line]
    assert len(why) == 2
    shown = subprocess.run(["bash", "-c", why[0]], capture_output=True, text=True, check=True)
    assert "Traceback" in shown.stdout
    assert "NonFiniteLossError: the loss was not finite at step" in shown.stdout
    for chosen in ([], ["diverging"], [str(file), "dataset=digits"]):
        assert cli.main(["ledger", "failures", *chosen, f"STORAGE={storage}"]) == 0
        output = capsys.readouterr().out
        assert output.startswith("NaN: 2 cells: NonFiniteLossError")
        assert f"\n  why: {why[0]}\n" in output or f"\n  why: {why[1]}\n" in output
        assert f"\n  again: {format_command('train')} " in output
    table = (storage / "reports" / "diverging" / "table.md").read_text()
    assert "0/2 seeds; failed" in table
    assert "NonFiniteLossError: the loss was not finite at step" in table
    assert "% (2)" in table
    finished = read_times(storage)
    assert len(finished) == 2
    output = sweep(file, status=1)
    assert "4 cells: 2 done, 0 missing, 2 failed" in output
    assert "2 cells failed before, and would fail again with the same code" in output
    assert f"ledger failures diverging LEDGER={storage / 'ledger'}\n" in output
    assert "FAILED" not in output
    assert "FAILED: NonFiniteLossError" in sweep(file, "RETRY=failed", status=1)
    assert read_times(storage) == finished


@pytest.mark.slow
def test_a_budget_starts_only_what_ends_in_time_and_says_so(
    small_sweep: Path, storage: Path, sweep: Sweep
) -> None:
    few = ["ROUTING=1", "SEEDS=1"]
    long = ["epochs=4000", "limit_batches=null"]
    output = sweep(small_sweep, "BUDGET=30s", *few, *long, status=3)
    assert "calibrating: 20 steps" in output
    assert "no other cell fits into BUDGET: 0 of 3 cells are finished" in output
    assert read_times(storage) == {}
    sweep(small_sweep, "BUDGET=5m", *few)


@pytest.mark.slow
def test_a_result_of_other_code_is_renewed_when_asked_and_stands_until_then(
    small_sweep: Path, storage: Path, sweep: Sweep
) -> None:
    few = ["ROUTING=1", "SEEDS=1"]
    sweep(small_sweep, *few)
    path = sorted(storage.glob("ledger/*/*/result.json"))[0]
    today = json.loads(path.read_text())
    older = {**today, "code": {"numerics": "older"}}
    path.write_text(json.dumps(stored_files.with_digests(older, today["sha256"])))
    before = read_times(storage)
    output = sweep(small_sweep, *few)
    assert "2 done, 1 stale (finished by other code; RERUN=stale runs these again), 0" in output
    assert "nothing to run: every cell is finished\n" in output
    assert "1 cell made by other code than today's" in output
    assert read_times(storage) == before
    sweep(small_sweep, *few, "RERUN=stale")
    renewed = json.loads(path.read_text())
    assert all(renewed[key] == today[key] for key in ("code", "metrics"))
    assert len([s for s, when in read_times(storage).items() if when != before[s]]) == 1
    assert len(list((storage / "ledger" / "superseded").iterdir())) == 1


def test_a_search_that_needs_ray_says_so(search: Path, sweep: Sweep) -> None:
    assert "search.scheduler asha needs EXECUTOR=ray" in sweep(search, status=2)


@pytest.mark.slow
def test_asha_ends_trials_early_and_an_early_end_is_no_result(
    search: Path, storage: Path, capsweep
) -> None:
    ended = capsweep("sweep", str(search), f"STORAGE={storage}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    stopped = list(storage.glob("ledger/*/*/stopped.json"))
    assert stopped
    assert not [path for path in stopped if (path.parent / "result.json").exists()]
    assert f"{len(stopped)} ended early and are not shown" in ended.stdout
    assert len(read_times(storage)) + len(stopped) == 8
