"""Budget, parts of an array, an object store, renewal of results, more seeds, search."""

import json
from pathlib import Path

import pytest

from capsweep import cli
from capsweep.ledger import stored_files

pytestmark = pytest.mark.slow

SEARCH = """\
question: Which learning rate?
kind: search
base: [epochs=4, limit_batches=4, model.conv.channels=8, model.primary.types=2, logger=csv]
seeds: [0]
search: {metric: val/error, trials: 4, scheduler: SCHEDULER, reduction_factor: 2}
arms:
  capsnet: {space: {optim.optimizer.lr: "tag(log, interval(0.00001, 0.03))", batch_size: [8, 16]}}
"""


def sweep(file: Path, storage: Path, *more: str) -> int:
    """`capsweep sweep` in this process."""
    return cli.main(
        ["sweep", str(file), "--executor", "local", "--storage", str(storage), "logger=csv", *more]
    )


def results(storage: Path) -> dict[str, float]:
    """When each finished cell was written."""
    return {p.parent.name: p.stat().st_mtime_ns for p in storage.glob("ledger/*/*/result.json")}


def test_a_budget_starts_only_what_ends_in_time_and_says_so(
    small_sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = ["epochs=4000", "limit_batches=null", "--routing", "1", "--seeds", "1"]
    assert sweep(small_sweep, storage, "--budget", "30s", *long) == 3
    said = capsys.readouterr().out
    assert "calibrating: 20 steps" in said
    assert "nothing more fits into --budget: 0 of 3 cells are finished" in said
    assert results(storage) == {}
    assert sweep(small_sweep, storage, "--budget", "5m", "--routing", "1", "--seeds", "1") == 0


def test_the_jobs_of_an_array_share_the_work(
    small_sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("1/3", "2/3"):
        assert sweep(small_sweep, storage, "--executor", "array", "--shard", part) == 0
    assert 0 < len(results(storage)) < 10
    capsys.readouterr()
    assert sweep(small_sweep, storage, "--executor", "array", "--shard", "3/3") == 0
    assert len(results(storage)) == 10
    assert sweep(small_sweep, storage, "--executor", "array") == 2
    assert "--executor array and --shard i/n belong together" in capsys.readouterr().err


def test_an_object_store_holds_whole_cells_and_the_same_command_runs_nothing(
    small_sweep: Path, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = ["--ledger", f"file://{tmp_path}/bucket", "--routing", "3"]
    assert sweep(small_sweep, storage, *bucket) == 0
    assert not list((storage / "scratch").iterdir())
    found = list(Path(tmp_path, "bucket").glob("*/*/result.json"))
    assert len(found) == 6
    attempt = json.loads(found[0].read_text())["attempt"]
    assert (found[0].parent / attempt / "weights.ckpt").exists()
    capsys.readouterr()
    assert sweep(small_sweep, storage, *bucket) == 0
    assert "nothing to run" in capsys.readouterr().out


def test_a_result_of_other_code_is_renewed_when_asked_and_stands_until_then(
    small_sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--routing", "1", "--seeds", "1"]
    assert sweep(small_sweep, storage, *few) == 0
    path = sorted(storage.glob("ledger/*/*/result.json"))[0]
    old = json.loads(path.read_text())
    older = {**old, "code": {"numerics": "older"}}
    path.write_text(json.dumps(stored_files.with_digests(older, old["sha256"])))
    before = results(storage)
    capsys.readouterr()
    assert sweep(small_sweep, storage, *few) == 0
    said = capsys.readouterr().out
    assert "2 done, 1 stale, 0 missing" in said
    assert "1 cells made by other code than today's" in said
    assert results(storage) == before
    assert sweep(small_sweep, storage, *few, "--rerun", "stale") == 0
    new = json.loads(path.read_text())
    assert new["code"] == old["code"]
    assert new["metrics"] == old["metrics"]
    assert len([s for s, when in results(storage).items() if when != before[s]]) == 1
    assert len(list((storage / "ledger" / "superseded").iterdir())) == 1


def test_more_seeds_are_added_where_an_order_is_undecided_and_the_table_says_so(
    small_sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--routing", "1", "--recon", "off", "--seeds", "3"]
    assert sweep(small_sweep, storage, *few, "--more-seeds", "6") == 0
    said = capsys.readouterr().out
    table = (storage / "reports" / "small" / "table.md").read_text()
    assert "undecided" in said
    assert "divided equally over 3 planned looks (Bonferroni)" in table
    assert "(6)" in table or "(5)" in table
    cli.main(["report", str(small_sweep), "--storage", str(storage), "logger=csv", *few])
    assert (storage / "reports" / "small" / "table.md").read_text() == table
    assert sweep(small_sweep, storage, *few, "--more-seeds", "9") == 2
    assert "MORE_SEEDS=9: this sweep was looked at with other plans" in capsys.readouterr().err


def test_a_search_chooses_on_validation_and_goes_on_where_it_was(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "find.yaml"
    file.write_text(SEARCH.replace("SCHEDULER", "none"))
    assert sweep(file, storage, "trainer.accelerator=cpu") == 0
    said = capsys.readouterr().out
    assert "4 of 4 trials seen, 4 complete" in said
    assert "Settings chosen on val/error of validation examples" in said
    assert "supports no claim" in said
    before = results(storage)
    file.write_text(file.read_text().replace("trials: 4", "trials: 6"))
    assert sweep(file, storage, "trainer.accelerator=cpu") == 0
    said = capsys.readouterr().out
    assert "6 trials, 4 seen before" in said
    assert before.items() <= results(storage).items()


def test_a_search_that_needs_ray_says_so(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "find.yaml"
    file.write_text(SEARCH.replace("SCHEDULER", "asha"))
    assert sweep(file, storage) == 2
    assert "search.scheduler asha needs EXECUTOR=ray" in capsys.readouterr().err
    assert cli.main(["plan", str(file), "--storage", str(storage)]) == 2


def test_asha_ends_trials_early_and_an_early_end_is_no_result(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], capsweep
) -> None:
    file = tmp_path / "find.yaml"
    file.write_text(SEARCH.replace("SCHEDULER", "asha").replace("trials: 4", "trials: 8"))
    ended = capsweep("sweep", str(file), "--storage", str(storage), "trainer.accelerator=cpu")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    stopped = list(storage.glob("ledger/*/*/stopped.json"))
    assert stopped
    assert not [path for path in stopped if (path.parent / "result.json").exists()]
    assert f"{len(stopped)} ended early and are not shown" in ended.stdout
    assert len(results(storage)) + len(stopped) == 8
