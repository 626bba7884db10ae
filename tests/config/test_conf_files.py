"""Every file of conf/ stands in a configuration that can be run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from capsweep.config import compose, overrides, roots
from capsweep.config.cell import LOGISTICS, SCIENCE, get

CONF = roots.find("conf")
OPTIONS = sorted(
    (str(path.parent.relative_to(CONF)), path.stem)
    for path in CONF.rglob("*.yaml")
    if path.parent != CONF
)
PRESETS = ("experiment", "debug")


def content(path: Path) -> dict[str, Any]:
    """A YAML file as plain data."""
    return yaml.safe_load(path.read_text())


def test_the_files_are_found() -> None:
    assert len(OPTIONS) >= 10
    assert ("dataset", "digits") in OPTIONS


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=["=".join(each) for each in OPTIONS])
def test_every_option_of_every_group_composes_alone(group: str, option: str) -> None:
    cell = compose.cell([f"{group}={option}"])
    assert len(cell.signature) == 16
    assert option in overrides.options(group)


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=["=".join(each) for each in OPTIONS])
def test_an_option_that_says_its_name_says_the_name_of_its_file(group: str, option: str) -> None:
    written = content(CONF / group / f"{option}.yaml")
    assert written.get("name", option) == option
    if "name" in written:
        assert get(compose.cell([f"{group}={option}"]).config, f"{group}.name") == option


def test_every_root_key_is_science_or_logistics_and_not_both() -> None:
    root = content(CONF / "train.yaml")
    chosen = [group for entry in root["defaults"] if isinstance(entry, dict) for group in entry]
    groups = {group for group in chosen if not group.startswith("override ")} - {*PRESETS}
    keys = groups | (set(root) - {"defaults", "hydra"})
    assert len(keys) > 10
    assert keys == {*SCIENCE, *LOGISTICS}
    assert len(SCIENCE) + len(LOGISTICS) == len(keys)


def test_every_group_is_chosen_in_the_root() -> None:
    root = content(CONF / "train.yaml")
    chosen = {group for entry in root["defaults"] if isinstance(entry, dict) for group in entry}
    assert {group for group, _ in OPTIONS} <= chosen


def test_a_cell_has_all_root_keys_and_no_other() -> None:
    config = compose.cell([]).config
    assert set(config) == {*SCIENCE, *LOGISTICS}
