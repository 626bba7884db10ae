"""Everything in an object store: the commands a user types, on real MNIST, twice."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import s3_server
from s3_server import S3Server

pytestmark = pytest.mark.slow

SWEEP = """\
question: Does a sweep work on an object store?
base: [model=cnn_small, "model.hidden=8", debug=fast, trainer.accelerator=cpu]
seeds: [0, 1]
baseline: cnn
arms: {cnn: {fixed: []}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""

Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(capsweep: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: S3Server) -> Here:
    """Runs capsweep in an empty folder with STORAGE in the store, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    environment = {"STORAGE": store.url("bucket/x"), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        ran = capsweep(*words, **environment, **s3_server.CREDENTIALS)
        assert ran.returncode == 0, ran.stderr
        return ran

    return call


def put_mnist(store: S3Server, data_folder: Path) -> None:
    """The official files, below STORAGE/data."""
    for path in (data_folder / "mnist").glob("*.gz"):
        store.put(f"bucket/x/data/mnist/{path.name}", path.read_bytes())


def test_a_cell_is_trained_from_the_store_into_the_store(
    here: Here, store: S3Server, data_folder: Path, tmp_path: Path
) -> None:
    put_mnist(store, data_folder)
    ran = here("train", "dataset=mnist", "debug=fast", "model=cnn_small", "logger=csv")
    [result] = [name for name in store.objects if name.endswith("/result.json")]
    assert result.startswith("bucket/x/ledger/")
    assert json.loads(store.objects[result])["steps"] == 2
    assert "results: s3://bucket/x/ledger/" in ran.stdout
    assert store.count("GET", ".gz") == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "outputs"]


def test_a_sweep_typed_twice_runs_once_and_its_table_is_made_of_the_store(
    here: Here, store: S3Server, data_folder: Path, tmp_path: Path
) -> None:
    put_mnist(store, data_folder)
    file = tmp_path / "small.yaml"
    file.write_text(SWEEP)
    words = ("sweep", str(file), "--dataset", "mnist", "--executor", "local", "logger=csv")
    assert "all 2 cells are finished" in here(*words).stdout
    assert len([name for name in store.objects if name.endswith("/result.json")]) == 2
    assert store.count("GET", ".gz") == 4
    assert "nothing to run: every cell is finished" in here(*words).stdout
    assert store.count("GET", ".gz") == 4
    here("report", str(file), "--dataset", "mnist", "logger=csv")
    assert (tmp_path / "outputs" / "reports" / "small" / "table.md").is_file()
    listed = here("ledger", "ls").stdout
    assert len([line for line in listed.splitlines() if "mnist" in line or "done" in line]) >= 2
