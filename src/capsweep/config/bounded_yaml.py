"""YAML that a person or another machine wrote, read with bounds on its size and depth.

libyaml's composer calls itself once per level, so that deep text ends the process; and a few lines
of aliases make any number of values. The stream of events does neither: it is looked at first.
A key may stand once in a section.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from capsweep.errors import ConfigError

MOST_BYTES = 1_000_000
DEEPEST = 64  # levels


class _StrictLoader(yaml.CSafeLoader):
    """A YAML loader that makes no objects, and refuses a key that a section has twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
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
        _check_events(text)
        return yaml.load(text, _StrictLoader)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a number, date or key that is none
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from error


def load_settings(text: str | bytes) -> dict[str, Any]:
    """A stored configuration, of names and values that JSON has too. Raises ConfigError."""
    settings = load(text)
    try:
        is_plain = json.loads(json.dumps(settings, allow_nan=False)) == settings
    except (TypeError, ValueError):
        is_plain = False
    if not isinstance(settings, dict) or not is_plain:
        raise ConfigError("it is no configuration: names, and text, numbers or lists below them")
    return settings


def _check_events(text: str | bytes) -> None:
    """Raise ConfigError for more levels than the bound, a tag or an alias."""
    levels = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise ConfigError(f"line {line}: a tag (!) or an alias (*); write the value itself")
        levels += isinstance(event, yaml.CollectionStartEvent)
        levels -= isinstance(event, yaml.CollectionEndEvent)
        if levels > DEEPEST:
            raise ConfigError(f"line {line}: deeper than {DEEPEST} levels")
