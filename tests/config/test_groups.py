"""Groups are read off conf/: its folders, and those further down that do not only sort presets."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from capsweep.cli import train
from capsweep.config import compose, overrides
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand

SWEEP = """\
question: Which pattern?
base: [dataset=mixed]
seeds: [0]
baseline: all
arms:
  all: {space: {AXIS}}
table: {rows: [dataset/pattern], columns: [dataset], metric: test/error}
"""


@pytest.fixture
def nested(conf_tree: Callable[[], Path]) -> Path:
    """conf/ with a new group inside a group, and a folder that only sorts the options of one."""
    conf = conf_tree()
    for name in ("plain", "striped"):
        file = conf / "dataset" / "pattern" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"name: {name}\ndepth: {len(name)}\n")
    digits = (conf / "dataset" / "digits.yaml").read_text().replace("name: digits", "name: mixed")
    mixed = digits.replace("defaults:\n", "defaults:\n  - pattern: plain\n")
    (conf / "dataset" / "mixed.yaml").write_text(mixed)
    preset = conf / "experiment" / "sorted" / "small.yaml"
    preset.parent.mkdir()
    preset.write_text("# @package _global_\ndefaults:\n  - override /dataset: mixed\nepochs: 3\n")
    return conf


@pytest.mark.usefixtures("nested")
def test_a_folder_inside_a_group_is_a_group_or_sorts_presets() -> None:
    assert {"dataset", "dataset.source", "dataset.pattern"} < set(overrides.list_groups())
    assert overrides.is_group("dataset/pattern")
    assert overrides.list_options("dataset.pattern") == ["plain", "striped"]
    assert {"digits", "mixed"} <= set(overrides.list_options("dataset"))
    assert not any("/" in option for option in overrides.list_options("dataset"))
    assert not overrides.is_group("experiment.sorted")
    assert {"digits", "sorted/small"} <= set(overrides.list_options("experiment"))
    assert compose.cell(["experiment=sorted/small"]).config["epochs"] == 3


@pytest.mark.usefixtures("nested")
def test_a_dot_and_a_slash_choose_the_same() -> None:
    dotted, slashed = (overrides.parse(f"dataset{sign}pattern=striped") for sign in "./")
    assert dotted == slashed
    assert dotted.text == "dataset/pattern=striped"
    with pytest.raises(ConfigError, match=r"^dataset\.pattern is overridden twice"):
        overrides.parse_single(["dataset.pattern=plain", "dataset/pattern=striped"])
    cells = [compose.cell(["dataset=mixed", f"dataset{sign}pattern=striped"]) for sign in "./"]
    assert cells[0].config["dataset"]["pattern"] == {"name": "striped", "depth": 7}
    assert cells[0].signature == cells[1].signature
    assert compose.cell(["dataset=mixed"]).config["dataset"]["pattern"]["depth"] == 5


@pytest.mark.usefixtures("nested")
def test_the_hydra_application_takes_a_dot_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["capsweep"])
    monkeypatch.setenv("COMP_LINE", "")
    arguments = ["--cfg", "job", "dataset=mixed", "dataset.pattern=striped", "epochs=2"]
    assert train.main(arguments) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["dataset"]["pattern"] == {"name": "striped", "depth": 7}


@pytest.mark.usefixtures("nested")
@pytest.mark.parametrize("sign", "./")
def test_it_may_be_an_axis_of_a_sweep(sign: str, tmp_path: Path) -> None:
    path = tmp_path / "patterns.yaml"
    path.write_text(SWEEP.replace("AXIS", f"dataset{sign}pattern: [plain, striped]"))
    typed = {"EXCLUDE": "dataset/pattern=plain"}
    points = expand.expand_sweep(choices.load_sweep(str(path), typed))
    assert [point.coordinate("dataset.pattern") for point in points] == ["striped"]
    chosen = choices.load_sweep(str(path), {}, ["dataset/pattern=striped"])
    assert chosen.rows == ("dataset.pattern",)
    assert len(expand.expand_sweep(chosen)) == 1
