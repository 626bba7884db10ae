"""Every file of conf/ stands in a configuration that can be run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from capsweep.config import compose, groups, roots
from capsweep.config.cell import LOGISTICS, SCIENCE, get

CONF = roots.find("conf")
OPTIONS = sorted((g, option) for g in groups.groups() for option in groups.options(g))
PRESETS = ("experiment", "debug")


def content(path: Path) -> dict[str, Any]:
    """A YAML file as plain data."""
    return yaml.safe_load(path.read_text())


def file_of(group: str, option: str) -> Path:
    """The file of an option."""
    return CONF / groups.with_slashes(group) / f"{option}.yaml"


def chosen(group: str, option: str) -> list[str]:
    """An option, and of a group within a group the first file that takes it."""
    taker = Path(groups.groups()[group][0]).relative_to("conf").with_suffix("")
    inside = "." in group and taker != Path("train")
    outer = [f"{taker.parts[0]}={'/'.join(taker.parts[1:])}"] if inside else []
    return [*outer, f"{group}={option}"]


def test_every_file_is_an_option_of_one_group() -> None:
    assert len(OPTIONS) >= 10
    assert ("dataset", "digits") in OPTIONS
    files = [file_of(group, option) for group, option in OPTIONS]
    assert sorted(files) == sorted(set(CONF.rglob("*.yaml")) - {CONF / "train.yaml"})


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=["=".join(each) for each in OPTIONS])
def test_every_option_of_every_group_composes_alone(group: str, option: str) -> None:
    assert len(compose.cell(chosen(group, option)).signature) == 16


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=["=".join(each) for each in OPTIONS])
def test_an_option_that_says_its_name_says_the_name_of_its_file(group: str, option: str) -> None:
    written = content(file_of(group, option))
    assert written.get("name", option) == option
    if "name" in written:
        assert get(compose.cell(chosen(group, option)).config, f"{group}.name") == option


def test_every_root_key_is_science_or_logistics_and_not_both() -> None:
    root = content(CONF / "train.yaml")
    named = [group for entry in root["defaults"] if isinstance(entry, dict) for group in entry]
    sections = {group for group in named if not group.startswith("override ")} - {*PRESETS}
    keys = sections | (set(root) - {"defaults", "hydra"})
    assert len(keys) > 10
    assert keys == {*SCIENCE, *LOGISTICS}
    assert len(SCIENCE) + len(LOGISTICS) == len(keys)


def test_every_group_is_chosen_in_the_root() -> None:
    root = content(CONF / "train.yaml")
    named = {group for entry in root["defaults"] if isinstance(entry, dict) for group in entry}
    assert {group for group, _ in OPTIONS if "." not in group} <= named


def test_a_cell_has_all_root_keys_and_no_other() -> None:
    config = compose.cell([]).config
    assert set(config) == {*SCIENCE, *LOGISTICS}
