"""A cell is a command line, and travels to another node as text."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.config import compose
from capsweep.config.cell import Cell, get, without
from capsweep.config.overrides import render
from capsweep.ledger.ledger import folder_of

LINES = ["", "experiment=digits seed=3", "model=cnn_small", "dataset=mnist debug=fast"]
# `$` begins an interpolation.
TEXT = st.text(st.characters(exclude_characters="$\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize("line", LINES)
def test_a_cell_comes_back_from_json_as_it_was(line: str) -> None:
    cell = compose.cell(line.split())
    back = Cell.from_json(cell.to_json())
    assert back == cell
    assert back.signature == cell.signature
    assert json.loads(cell.to_json())["overrides"] == line.split()


@pytest.mark.parametrize("line", LINES)
def test_the_command_of_a_cell_composes_the_same_cell(line: str) -> None:
    cell = compose.cell(line.split())
    program, door, *overrides = shlex.split(cell.command)
    assert (program, door) == ("capsweep", "train")
    assert compose.cell(overrides) == cell


@given(project=TEXT)
def test_the_command_survives_a_shell_whatever_the_text(project: str) -> None:
    cell = compose.cell([render("logger.project", project)])
    assert cell.config["logger"]["project"] == project
    assert compose.cell(shlex.split(cell.command)[2:]) == cell


def test_a_cell_lies_in_a_folder_named_by_its_signature() -> None:
    signature = compose.cell([]).signature
    assert len(signature) == 16
    assert set(signature) <= set("0123456789abcdef")
    ledger = Path("ledger")
    assert Path(ledger) / folder_of(signature) == ledger / signature[:2] / signature


def test_get_reads_dotted_keys_and_absent_ones_are_none() -> None:
    config = {"a": {"b": 1}, "c": None}
    assert get(config, "a.b") == 1
    assert get(config, "a") == {"b": 1}
    for absent in ("x", "a.x", "a.b.x", "c.x"):
        assert get(config, absent) is None


def test_without_removes_one_key_from_a_copy() -> None:
    config = {"a": {"b": 1, "c": 2}, "d": 3}
    assert without(config, ["a", "b"]) == {"a": {"c": 2}, "d": 3}
    assert without(config, ["a"]) == {"d": 3}
    assert without(config, ["a", "x"]) == without(config, ["x", "y"]) == config
    assert config == {"a": {"b": 1, "c": 2}, "d": 3}
