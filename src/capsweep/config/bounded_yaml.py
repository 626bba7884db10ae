"""YAML that a person or another machine wrote, read with bounds on its size and depth.

libyaml's composer calls itself once per level, so that deep text ends the process; and a few lines
of aliases make any number of values. The stream of events does neither: both are counted in it.
A key may stand once in a section.
"""

import math
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from capsweep.errors import ConfigError

MOST_BYTES = 1_000_000
MOST_VALUES = 100_000  # aliases count as what they stand for
DEEPEST = 64  # levels
MERGE = "tag:yaml.org,2002:merge"  # of the key <<


class _StrictLoader(yaml.CSafeLoader):
    """A YAML loader that makes no objects, and refuses a key that a section has twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):  # refused below
                continue
            if key in keys:
                line = node.start_mark.line + 1
                raise ConfigError(f"{key} is given twice in the section at line {line}; keep one")
            keys.add(key)
        return super().construct_mapping(node, deep)


def load_file(path: Path) -> Any:
    """The content of a YAML file. Raises ConfigError as `load`, and where it cannot be read."""
    try:
        with path.open("rb") as file:
            return load(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}") from error


def load(text: str | bytes) -> Any:
    """The content of one YAML document. Raises ConfigError: too large, too deep, no YAML."""
    try:
        size = len(text) if isinstance(text, bytes) else len(text.encode())
        if size > MOST_BYTES:
            raise ConfigError(f"it is {size:,} bytes large; at most {MOST_BYTES:,} are read")
        _check_events(yaml.parse(text, yaml.CSafeLoader))
        return yaml.load(text, _StrictLoader)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number or date that is none
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from error


def load_settings(text: str | bytes) -> dict[str, Any]:
    """A stored configuration, of names and values that JSON has too. Raises ConfigError."""
    settings = load(text)
    if not isinstance(settings, dict) or not _is_plain(settings):
        raise ConfigError("it is no configuration: names, and text, numbers or lists below them")
    return settings


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(value[name]) for name in value)
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (str, int))


def _check_events(events: Iterable[yaml.Event]) -> None:
    """Raise ConfigError for more values or levels than the bounds, aliases followed, or a tag."""
    anchors: dict[str, tuple[int, int]] = {}  # of what an anchor names: values, levels
    values = 0
    open_nodes: list[tuple[str | None, int]] = []  # anchor, values before it
    levels = [0]  # below each open node, and below the document
    for event in events:
        below = 0
        line = event.start_mark.line + 1
        if (tag := getattr(event, "tag", None)) is not None:
            raise ConfigError(f"line {line}: {tag} is a tag; remove it")
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            below = levels.pop() + 1
            if anchor is not None:
                anchors[anchor] = (values - before, below)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:  # or that of a node which is still open
                raise ConfigError(f"*{event.anchor} stands for nothing before it, or for itself")
            more, below = anchors[event.anchor]
            values += more
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, values))
            levels.append(0)
            values += 1
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor is not None:
                anchors[event.anchor] = (1, 0)
        levels[-1] = max(levels[-1], below)
        if len(open_nodes) + below > DEEPEST:
            raise ConfigError(f"line {line}: deeper than {DEEPEST} levels")
        if values > MOST_VALUES:
            raise ConfigError(f"it has more than {MOST_VALUES:,} values")
