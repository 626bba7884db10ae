"""Configurations taken apart."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from capsweep.config import compose

Leaves = Callable[[Mapping[str, Any]], dict[str, Any]]


def _walk(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _walk(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.fixture(scope="session")
def leaves() -> Leaves:
    """Dotted keys of a configuration, with their values; a list is a leaf."""
    return lambda section: dict(_walk(section, ""))


@pytest.fixture(scope="session")
def numeric_keys(leaves: Leaves) -> list[str]:
    """Every key of the default configuration that holds a number."""
    found = leaves(compose.cell([]).config).items()
    return [key for key, value in found if type(value) in (int, float)]


def _other_value(value: Any) -> Any:
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 if value else 0.001
    if isinstance(value, list):
        return [_other_value(value[0]), *value[1:]] if value else ["other"]
    return {"other": "other"} if isinstance(value, Mapping) else f"{value}-other"


@pytest.fixture(scope="session")
def other() -> Callable[[Any], Any]:
    """Another value of the same type: in bounds for every number of conf/."""
    return _other_value
