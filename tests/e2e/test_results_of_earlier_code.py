"""Results that the code of 2026-11-23 wrote, before modules moved, are read by the code of today.

`fixtures/earlier_results.tar.xz` holds a ledger of three finished cells and a failed one, and a
small MultiMNIST in shards, of which one of the cells was trained.
"""

import json
import tarfile
from pathlib import Path

import pytest

from capsweep import cli

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "earlier_results.tar.xz"
FINISHED = ("6ed9962259fac090", "e10f3dfe1d84ea7e", "ec5fe89867ebfdbe")
FAILED = "ab441e8944e1a20d"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The storage folder of the earlier code."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def _find_cell(results: Path, signature: str) -> Path:
    return results / "ledger" / signature[:2] / signature


@pytest.mark.parametrize("signature", FINISHED)
def test_a_finished_cell_has_its_signature_still_and_is_not_trained_again(
    results: Path, signature: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The stored overrides are typed, with today's places."""
    cell = _find_cell(results, signature)
    stored, before = (cell / "provenance.json").read_text(), (cell / "result.json").read_bytes()
    there = ("places.", "logger=")
    texts = [text for text in json.loads(stored)["overrides"] if not text.startswith(there)]
    assert cli.main(["train", *texts, f"places.storage={results}", "logger=csv"]) == 0
    assert f"results: {cell}" in capfd.readouterr().out
    assert (cell / "result.json").read_bytes() == before


def test_the_ledger_lists_every_cell(results: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ledger", "ls", f"STORAGE={results}"]) == 0
    lines = dict(line.split(None, 1) for line in capfd.readouterr().out.splitlines())
    # Other code than today's finished them.
    assert {name for name, text in lines.items() if text.startswith("stale")} == set(FINISHED)
    assert lines[FAILED].startswith("failed")


@pytest.mark.parametrize(
    ("signature", "figure"), [(FINISHED[1], "reconstructions"), (FINISHED[2], "segmentation")]
)
def test_a_figure_is_drawn_of_its_weights(
    results: Path, signature: str, figure: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", figure, signature, f"STORAGE={results}"]) == 0, capfd.readouterr()
    assert list((_find_cell(results, signature) / "evals").glob(f"{figure}*.png"))


def test_its_shards_are_whole(results: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "verify", str(results / "data" / "multimnist")]) == 0
    assert "complete (multimnist, 2 shards" in capfd.readouterr().out
