"""Groups are read off conf/: its folders, and those further down that a defaults list names."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from capsweep.cli import train
from capsweep.config import compose, overrides
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand, spec
from capsweep.sweep.choices import Choices

SWEEP = """\
question: Which pattern?
base: [dataset=mixed]
seeds: [0]
baseline: all
arms:
  all: {space: {AXIS}}
exclude: [{dataset/pattern: plain}]
table: {rows: [ROW], columns: [dataset], metric: test/error}
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
    assert mixed != digits
    (conf / "dataset" / "mixed.yaml").write_text(mixed)
    sorted_in = conf / "experiment" / "sorted" / "small.yaml"
    sorted_in.parent.mkdir()
    sorted_in.write_text(
        "# @package _global_\ndefaults:\n  - override /dataset: mixed\nepochs: 3\n"
    )
    return conf


@pytest.mark.usefixtures("nested")
def test_a_folder_that_a_defaults_list_names_is_a_group_of_its_own() -> None:
    assert overrides.list_groups()["dataset.pattern"] == ["conf/dataset/mixed.yaml"]
    assert overrides.is_group("dataset.pattern")
    assert overrides.is_group("dataset/pattern")
    assert overrides.list_options("dataset.pattern") == ["plain", "striped"]
    assert overrides.list_options("dataset/pattern") == ["plain", "striped"]
    assert {"digits", "mixed"} <= set(overrides.list_options("dataset"))
    assert not any("/" in option for option in overrides.list_options("dataset"))


@pytest.mark.usefixtures("nested")
def test_any_other_folder_sorts_the_options_of_the_group_around_it() -> None:
    assert not overrides.is_group("experiment.sorted")
    assert {"digits", "sorted/small"} <= set(overrides.list_options("experiment"))
    assert compose.cell(["experiment=sorted/small"]).config["epochs"] == 3


@pytest.mark.parametrize(
    ("written", "file", "is_brought_in"),
    [
        ("defaults: [{/dataset/pattern: plain}]", "loss/other.yaml", True),
        ("defaults: [{dataset/pattern: null}]", "other.yaml", True),
        ("defaults: [{optional pattern: [plain]}]", "dataset/other.yaml", True),
        ("defaults: [{override /dataset/pattern@x: plain}]", "experiment/deep/other.yaml", False),
        ("defaults: [{override /dataset/pattern: plain}]", "experiment/other.yaml", False),
        ("defaults: [{optional pattern@_global_.y: [plain]}]", "dataset/other.yaml", False),
        ("defaults: [{pattern@_here_: plain}]", "dataset/other.yaml", False),
    ],
)
def test_every_way_to_name_a_group_counts_and_some_bring_it_in(
    nested: Path, written: str, file: str, is_brought_in: bool
) -> None:
    (nested / "dataset" / "mixed.yaml").unlink()
    (nested / file).parent.mkdir(exist_ok=True)
    (nested / file).write_text(written)
    assert overrides.list_groups()["dataset.pattern"] == ([f"conf/{file}"] if is_brought_in else [])


@pytest.mark.usefixtures("nested")
def test_a_dot_and_a_slash_choose_the_same() -> None:
    dotted, slashed = (overrides.parse(f"dataset{sign}pattern=striped") for sign in "./")
    assert dotted == slashed
    assert dotted.text == "dataset/pattern=striped"
    assert overrides.parse("dataset.pattern=glob(*)").values == ("plain", "striped")
    with pytest.raises(ConfigError, match=r"^dataset\.pattern is overridden twice"):
        overrides.parse_single(["dataset.pattern=plain", "dataset/pattern=striped"])
    cells = [
        compose.cell(["dataset=mixed", f"dataset{sign}pattern=striped", "seed=1"]) for sign in "./"
    ]
    assert cells[0].config["dataset"]["pattern"] == {"name": "striped", "depth": 7}
    assert cells[0].signature == cells[1].signature
    assert compose.cell(["dataset=mixed"]).config["dataset"]["pattern"]["depth"] == 5


@pytest.mark.usefixtures("nested")
@pytest.mark.parametrize("sign", "./")
def test_the_hydra_application_takes_it_too(
    sign: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["capsweep"])
    monkeypatch.setenv("COMP_LINE", "")
    arguments = ["--cfg", "job", "dataset=mixed", f"dataset{sign}pattern=striped", "epochs=2"]
    assert train.main(arguments) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["dataset"]["pattern"] == {"name": "striped", "depth": 7}
    assert printed["epochs"] == 2


@pytest.mark.usefixtures("nested")
@pytest.mark.parametrize("axis", [".", "/"])
@pytest.mark.parametrize("row", [".", "/"])
def test_it_may_be_an_axis_of_a_sweep(axis: str, row: str, tmp_path: Path) -> None:
    text = SWEEP.replace("AXIS", f"dataset{axis}pattern: [plain, striped]")
    text = text.replace("ROW", f"dataset{row}pattern")
    path = tmp_path / "patterns.yaml"
    path.write_text(text)
    points = expand.expand_sweep(spec.load(str(path)))
    assert [point.coordinate("dataset.pattern") for point in points] == ["striped"]
    chosen = choices.load_sweep(str(path), Choices(overrides=["dataset/pattern=striped"]))
    assert chosen.rows == ("dataset.pattern",)
    assert len(expand.expand_sweep(chosen)) == 1


@pytest.mark.parametrize("source", ["digits", "fashion_mnist"])
def test_a_preset_cannot_name_one_choice_and_read_the_files_of_another(
    source: str, conf_tree: Callable[[], Path]
) -> None:
    file = conf_tree() / "experiment" / "mislabelled.yaml"
    head = "# @package _global_\ndefaults:\n  - override /dataset: multimnist\n"
    file.write_text(f"{head}dataset: {{source: {source}}}\n")
    with pytest.raises(ConfigError) as caught:
        compose.cell(["experiment=mislabelled"])
    cure = f"write `override /dataset/source: {source}` in defaults"
    told = f"conf/experiment/mislabelled.yaml: dataset.source={source} is a choice; {cure}"
    assert str(caught.value) == told
    file.write_text(f"{head}  - override /dataset/source: {source}\n")
    assert compose.cell(["experiment=mislabelled"]).config["dataset"]["name"] == f"multi{source}"
