"""The main job through a real Ray Tune and real offline W&B runs."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from offline_runs import list_epochs, read_runs

Capsweep = Callable[..., subprocess.CompletedProcess[str]]
PATIENT = "logger.max_seconds=60"  # of a busy machine: these cells are shorter than W&B's start


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One storage for the module: each test finds what the sweep left."""
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def swept(capsweep: Capsweep, small_sweep: Path, storage: Path) -> subprocess.CompletedProcess[str]:
    """`make sweep ROUTING=3` in small: 2 CNN cells and 4 CapsNet cells."""
    # A local sweep takes a Ray of its own, whatever cluster the environment names.
    choices = ["ROUTING=3", f"STORAGE={storage}", PATIENT]
    return capsweep("sweep", str(small_sweep), *choices, RAY_ADDRESS="127.0.0.1:9")


def test_it_ends_with_the_table_the_report_and_status_0(
    swept: subprocess.CompletedProcess[str], storage: Path
) -> None:
    assert swept.returncode == 0, swept.stdout + swept.stderr
    assert "6 cells: 0 done, 6 missing" in swept.stdout
    assert "W&B: offline, nobody is logged in" in swept.stdout
    report = storage / "reports" / "small-ROUTING=3" / "table.md"
    assert swept.stdout.count(f"report: {report.with_name('index.html')}") == 2
    assert 'class="running"' not in report.with_name("index.html").read_text()
    rows = [line for line in report.read_text().splitlines() if line.startswith("| capsnet")]
    assert len(rows) == 2
    assert all("% (2)" in row for row in rows)
    assert list((storage / "ray").iterdir()) == [], "Ray left files of its own"


def test_every_cell_is_a_wandb_run_found_by_its_signature_and_ablation_keys(
    swept: subprocess.CompletedProcess[str], storage: Path
) -> None:
    finished = {path.parent.name for path in (storage / "ledger").glob("*/*/result.json")}
    tracked = read_runs(storage)
    assert len(finished) == 6
    assert set(tracked) == finished
    assert {run["run_group"] for run in tracked.values()} == {"small"}
    assert sorted(run["job_type"] for run in tracked.values()) == ["capsnet"] * 4 + ["cnn"] * 2
    assert {run["exit_code"] for run in tracked.values()} == {0}
    assert all(list_epochs(run) == [0, 1] for run in tracked.values())
    capsnets = [run["config"] for run in tracked.values() if run["job_type"] == "capsnet"]
    weights = sorted(config["loss.reconstruction.weight"] for config in capsnets)
    assert weights == [0.0, 0.0, 0.0005, 0.0005]
    assert {config["routing.num_iters"] for config in capsnets} == {3}
