"""Every file of conf/ stands in a configuration that can be run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from capsweep.config import compose, overrides, package_files, validation
from capsweep.config.cell import LOGISTICS, SCIENCE, flatten, get
from capsweep.errors import ConfigError

CONF = package_files.find_folder("conf")
GROUPS = overrides.list_groups()
OPTIONS = sorted((g, option) for g in GROUPS for option in overrides.list_options(g))


def content(path: Path) -> dict[str, Any]:
    """A YAML file as plain data."""
    return yaml.safe_load(path.read_text())


def file_of(group: str, option: str) -> Path:
    """The file of an option."""
    return CONF / overrides.with_slashes(group) / f"{option}.yaml"


def test_every_file_is_an_option_of_one_group() -> None:
    assert len(OPTIONS) >= 10
    assert ("dataset", "digits") in OPTIONS
    files = [file_of(group, option) for group, option in OPTIONS]
    assert sorted(files) == sorted(CONF.glob("*/**/*.yaml"))


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=["=".join(each) for each in OPTIONS])
def test_every_option_of_every_group_composes_alone_under_its_name(group: str, option: str) -> None:
    outer = ["dataset=multimnist"] if group == "dataset.source" else []  # which brings it in
    cell = compose.cell([*outer, f"{group}={option}"])
    assert len(cell.signature) == 16
    if "name" in content(file_of(group, option)):
        assert get(cell.config, f"{group}.name") == option


def test_every_root_key_is_science_or_logistics_and_not_both() -> None:
    root = content(CONF / "train.yaml")
    named = [group for entry in root["defaults"] if isinstance(entry, dict) for group in entry]
    sections = {group for group in named if not group.startswith("override ")} - {*compose.PRESETS}
    keys = sections | (set(root) - {"defaults", "hydra"})
    assert len(keys) > 10
    assert keys == {*SCIENCE, *LOGISTICS}
    assert len(SCIENCE) + len(LOGISTICS) == len(keys)


def test_every_bound_is_of_a_key_and_is_understood() -> None:
    rules = flatten(content(CONF / "bounds.yaml"))
    of_own_files = {"dataset.reader.axes", "loss.on_logits"}  # that `capsweep new` writes
    assert set(rules) - of_own_files <= overrides.list_known_keys()
    understood = [validation.keeps_rule(value, r) for r in rules.values() for value in (2, "a/b")]
    assert set(understood) == {True, False}


SOURCES = overrides.list_options("dataset.source")


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_reads_the_files_of_the_data_set_of_its_name(source: str) -> None:
    single = compose.cell([f"dataset={source}"]).config["dataset"]
    pairs = compose.cell(["dataset=multimnist", f"dataset.source={source}"]).config["dataset"]
    assert pairs["source"] == single["source"] == source
    assert pairs["reader"] == single["reader"]
    assert pairs["name"] == f"multi{source}"
    assert pairs["examples"]["train"] == single["examples"]["train"]


@pytest.mark.parametrize("value", ["0280", "0x11", "1_8_0", "3:00"])
def test_a_number_of_a_file_that_is_another_where_it_is_typed_is_refused(
    value: str, conf_tree: Callable[[], Path]
) -> None:
    path = conf_tree() / "dataset" / "digits.yaml"
    path.write_text(path.read_text().replace("validation: 180", f"validation: {value}"))
    with pytest.raises(ConfigError, match=rf"^conf/dataset/digits\.yaml: line 9: {value}: some"):
        compose.cell(["dataset=digits"])
    assert compose.cell(["dataset=mnist"]).config["dataset"]["name"] == "mnist"
