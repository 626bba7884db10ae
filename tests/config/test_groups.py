"""Groups are read off conf/: its folders, and those further down that a defaults list names."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from capsweep import train
from capsweep.config import compose, groups, overrides
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand, spec
from capsweep.sweep.choices import Choices

SWEEP = """\
question: Which source?
base: [dataset=mixed]
seeds: [0]
baseline: all
arms:
  all: {space: {AXIS}}
exclude: [{dataset/source: plain}]
table: {rows: [ROW], columns: [dataset], metric: test/error}
"""


@pytest.fixture
def nested(conf_tree: Callable[[], Path]) -> Path:
    """conf/ with a group inside a group, and a folder that only sorts the options of one."""
    conf = conf_tree()
    for name in ("plain", "striped"):
        file = conf / "dataset" / "source" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"name: {name}\ndepth: {len(name)}\n")
    digits = (conf / "dataset" / "digits.yaml").read_text().replace("name: digits", "name: mixed")
    (conf / "dataset" / "mixed.yaml").write_text(f"defaults:\n  - source: plain\n{digits}")
    paper = conf / "experiment" / "paper" / "small.yaml"
    paper.parent.mkdir()
    paper.write_text("# @package _global_\ndefaults:\n  - override /dataset: mixed\nepochs: 3\n")
    return conf


@pytest.mark.usefixtures("nested")
def test_a_folder_that_a_defaults_list_names_is_a_group_of_its_own() -> None:
    assert groups.groups()["dataset.source"] == ["conf/dataset/mixed.yaml"]
    assert overrides.is_group("dataset.source")
    assert overrides.is_group("dataset/source")
    assert overrides.options("dataset.source") == ["plain", "striped"]
    assert overrides.options("dataset/source") == ["plain", "striped"]
    assert overrides.options("dataset") == ["digits", "fashion_mnist", "mixed", "mnist"]


@pytest.mark.usefixtures("nested")
def test_any_other_folder_sorts_the_options_of_the_group_around_it() -> None:
    assert not overrides.is_group("experiment.paper")
    assert overrides.options("experiment") == ["digits", "paper/small"]
    assert compose.cell(["experiment=paper/small"]).config["epochs"] == 3


@pytest.mark.parametrize(
    ("written", "file"),
    [
        ("defaults: [{/dataset/source: plain}]", "loss/other.yaml"),
        ("defaults: [{override /dataset/source@x: plain}]", "experiment/deep/other.yaml"),
        ("defaults: [{optional source@_global_.y: [plain]}]", "dataset/other.yaml"),
        ("defaults: [{dataset/source: null}]", "other.yaml"),
    ],
)
def test_every_way_to_name_a_group_counts(nested: Path, written: str, file: str) -> None:
    (nested / "dataset" / "mixed.yaml").unlink()
    (nested / file).parent.mkdir(exist_ok=True)
    (nested / file).write_text(written)
    assert groups.groups()["dataset.source"] == [f"conf/{file}"]


@pytest.mark.parametrize(
    "written", ["", "defaults: [source/plain, _self_]", "x: defaults", "defaults: 3", "- defaults"]
)
def test_no_other_mention_does(nested: Path, written: str) -> None:
    (nested / "dataset" / "mixed.yaml").write_text(written)
    assert not overrides.is_group("dataset.source")
    assert "source/plain" in overrides.options("dataset")


def test_a_file_that_is_no_yaml_is_named(nested: Path) -> None:
    (nested / "dataset" / "mixed.yaml").write_text("defaults: [")
    with pytest.raises(ConfigError, match=r"^conf/dataset/mixed\.yaml: not YAML"):
        groups.groups()


@pytest.mark.usefixtures("nested")
def test_a_dot_and_a_slash_choose_the_same() -> None:
    dotted, slashed = (overrides.parse(f"dataset{sign}source=striped") for sign in "./")
    assert dotted == slashed
    assert dotted.texts() == ("dataset/source=striped",)
    assert overrides.parse("dataset.source=glob(*)").values == ("plain", "striped")
    with pytest.raises(ConfigError, match=r"^dataset\.source is overridden twice"):
        overrides.parse_single(["dataset.source=plain", "dataset/source=striped"])
    cells = [
        compose.cell(["dataset=mixed", f"dataset{sign}source=striped", "seed=1"]) for sign in "./"
    ]
    assert cells[0].config["dataset"]["source"] == {"name": "striped", "depth": 7}
    assert cells[0].signature == cells[1].signature
    assert compose.cell(["dataset=mixed"]).config["dataset"]["source"]["depth"] == 5


@pytest.mark.usefixtures("nested")
def test_keys_of_the_options_are_keys() -> None:
    cell = compose.cell(["dataset=mixed", "dataset.source=striped", "dataset.source.depth=9"])
    assert cell.config["dataset"]["source"] == {"name": "striped", "depth": 9}


@pytest.mark.usefixtures("nested")
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["dataset=mixed", "dataset.source=dotted"], r"^dataset\.source=dotted: .*plain, striped$"),
        (["dataset.source=plain"], r"^dataset\.source: .*not take it; conf/dataset/mixed\.yaml "),
        (["dataset.sorce=plain"], r"^dataset\.sorce: no such key; did you mean dataset\.source\?"),
    ],
)
def test_a_wrong_choice_is_named_with_its_cure(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose.cell(texts)


@pytest.mark.usefixtures("nested")
def test_a_value_drawn_from_the_chosen_option_follows_it() -> None:
    cell = compose.cell(
        ["dataset=mixed", "dataset/source=striped", "epochs=${dataset.source.depth}"]
    )
    assert cell.config["epochs"] == 7


@pytest.mark.usefixtures("nested")
@pytest.mark.parametrize("sign", "./")
def test_the_hydra_application_takes_it_too(
    sign: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["capsweep"])
    monkeypatch.setenv("COMP_LINE", "")
    arguments = ["--cfg", "job", "dataset=mixed", f"dataset{sign}source=striped", "epochs=2"]
    assert train.main(arguments) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["dataset"]["source"] == {"name": "striped", "depth": 7}
    assert printed["epochs"] == 2


@pytest.mark.usefixtures("nested")
@pytest.mark.parametrize("axis", [".", "/"])
@pytest.mark.parametrize("row", [".", "/"])
def test_it_may_be_an_axis_of_a_sweep(axis: str, row: str, tmp_path: Path) -> None:
    text = SWEEP.replace("AXIS", f"dataset{axis}source: [plain, striped]")
    text = text.replace("ROW", f"dataset{row}source")
    path = tmp_path / "sources.yaml"
    path.write_text(text)
    points = expand.points(spec.load(str(path)))
    assert [point.coordinate("dataset.source") for point in points] == ["striped"]
    chosen, _ = choices.apply(spec.load(str(path)), Choices(overrides=["dataset/source=striped"]))
    assert chosen.rows == ("dataset.source",)
    assert len(expand.points(chosen)) == 1
