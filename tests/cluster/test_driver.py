"""What was typed here is driven there: the same cells, by absolute places, and nothing twice."""

import shlex
from pathlib import Path

import pytest

from capsweep.cli import parser, sweep_options
from capsweep.cluster import driver
from capsweep.sweep.expand import Point

TYPED = (
    "sweep ablation SEEDS=2 --sto results batch_size=8,16 ROUTING=1,3 RETRY=failed "
    "--exclude 'batch_size=8 epochs=12' RAY_ADDRESS=127.0.0.1:6379 --exclude 'batch_size=16 seed=1'"
)


def load_points(words: list[str]) -> list[Point]:
    return sweep_options.load_points(parser.parse_arguments(words))[1]


def make_inner(text: str, staged: bool = True) -> list[str]:
    parsed = parser.parse_arguments(shlex.split(text))
    config = sweep_options.load_points(parsed)[1][0].cell.config
    return driver.make_inner_command(parsed, config, staged)


def test_the_cells_and_their_places_are_those_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = load_points(shlex.split(TYPED))
    inner = make_inner(TYPED)
    monkeypatch.chdir("/")
    parsed = parser.parse_arguments(inner)
    again = sweep_options.load_points(parsed)[1]
    assert [p.cell.signature for p in again] == [p.cell.signature for p in typed]
    assert again[0].cell.config["places"] == typed[0].cell.config["places"]
    assert again[0].cell.config["places"]["storage"] == str(tmp_path / "results")
    assert (parsed.here, parsed.retry, parsed.address) == (True, "failed", None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # as Ray tells its jobs
    assert load_points(inner)[0].cell.config["cluster"]["address"] == "10.0.0.1:6379"


def test_one_choice_is_one_command_however_it_is_typed() -> None:
    inner = make_inner("sweep ablation SEEDS=2 EPOCHS=3 CLUSTER=address")
    assert inner == make_inner("sweep EPOCHS=3 ablation CLUSTER=address --seed 2")
    assert inner == make_inner("sweep ablation SEEDS=2 EPOCHS=3 RAY_ADDRESS=head:6379")
    assert inner != make_inner("sweep ablation SEEDS=3 EPOCHS=3 CLUSTER=address")


def test_a_sweep_file_of_elsewhere_is_named_as_it_is_staged(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("question: q\nbase: []\nseeds: [0]\nbaseline: a\narms: {a: {}}\n")
    file.write_text(file.read_text() + "table: {rows: [arm], columns: [], metric: test/error}\n")
    assert make_inner(f"sweep {file}")[:3] == ["sweep", "mine", "--here"]
    assert make_inner(f"sweep {file}", staged=False)[1] == str(file)
