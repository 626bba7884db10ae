"""What was typed here is driven there: the same cells, by absolute places, and nothing twice."""

import shlex
from pathlib import Path

import pytest

from capsweep.cli import parser, sweep_options
from capsweep.cluster import driver
from capsweep.config import compose

TYPED = (
    "SEEDS=2 STORAGE=results batch_size=8,16 ROUTING=1,3 RETRY=failed "
    "'EXCLUDE=batch_size=8 epochs=12' RAY_ADDRESS=127.0.0.1:6379 cluster.grows_to.cpu=4"
)


def make_inner(text: str, sweep: str = "ablation", staged: bool = True) -> list[str]:
    words = shlex.split(text)
    config = sweep_options.load_points(parser.parse_arguments(["sweep", sweep, *words]))[1]
    return driver.make_inner_command(sweep, words, config[0].cell.config, staged)


def test_the_cells_and_their_places_are_those_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parsed = parser.parse_arguments(["sweep", "ablation", *shlex.split(TYPED)])
    typed = sweep_options.load_points(parsed)[1]
    inner = make_inner(TYPED)
    monkeypatch.chdir("/")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # as Ray tells its jobs
    parsed = parser.parse_arguments(inner)
    again = sweep_options.load_points(parsed)[1]
    assert [p.cell.signature for p in again] == [p.cell.signature for p in typed]
    config = again[0].cell.config
    assert config["places"] == typed[0].cell.config["places"]
    assert config["places"]["storage"] == str(tmp_path / "results")
    assert config["cluster"]["address"] == "10.0.0.1:6379"
    assert (config["cluster"]["name"], config["cluster"]["grows_to"]["cpu"]) == ("address", 4)
    assert (parsed.here, parsed.retry) == (True, "failed")


def test_one_choice_is_one_command_in_whatever_order_it_is_typed() -> None:
    names = {
        driver.name_command("ablation", make_inner(text))
        for text in (
            "SEEDS=2 EPOCHS=3 CLUSTER=address",
            "CLUSTER=address EPOCHS=3 SEEDS=2",
            "SEEDS=2 EPOCHS=3 RAY_ADDRESS=head:6379",
        )
    }
    assert len(names) == 1
    assert driver.name_command("ablation", make_inner("SEEDS=3 EPOCHS=3")) not in names


def test_words_of_this_machine_are_left_out() -> None:
    config = compose.cell([]).config
    words = ["ROUTING=3", "CLUSTER=address", "RAY_ADDRESS=h:1", "STORAGE=s", "places.data=d"]
    inner = driver.make_inner_command("ablation", words, config)
    assert inner[:5] == ["sweep", "ablation", "--here", "ROUTING=3", "CLUSTER=local"]
    assert len(inner) == 8


def test_a_sweep_file_of_elsewhere_is_named_as_it_is_staged(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("question: q\nbase: []\nseeds: [0]\nbaseline: a\narms: {a: {}}\n")
    file.write_text(file.read_text() + "table: {rows: [arm], columns: [], metric: test/error}\n")
    assert make_inner("", str(file))[:3] == ["sweep", "mine", "--here"]
    assert make_inner("", str(file), staged=False)[1] == str(file)
