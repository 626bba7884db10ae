"""Sections of a sweep file, read strictly: no key twice, none unknown, none missing."""

import difflib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from capsweep.config import bounded_yaml, groups
from capsweep.config import overrides as grammar
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError


def read(path: Path) -> Any:
    """The content of a YAML file. Raises ConfigError for a key given twice in a section, a file
    that is too large or too deep, and one that cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(bounded_yaml.MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}") from error
    # A SafeLoader with one more check: it makes no objects.
    return bounded_yaml.load(content, _StrictLoader)


class _StrictLoader(yaml.CSafeLoader):
    """A YAML loader for which a key given twice is an error, not the last one's win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = (self.construct_object(key, deep=True) for key, _ in node.value)
        if (key := first_repeated(keys)) is not None:
            line = node.start_mark.line + 1
            raise ConfigError(f"{key} is given twice in the section at line {line}; keep one")
        return super().construct_mapping(node, deep)


def first_repeated(values: Iterable[Any]) -> Any:
    """The first value that stood there before; None when each stands once."""
    seen: set[Any] = set()
    for value in values:
        known = value if isinstance(value, Hashable) else repr(value)
        if known in seen:
            return value
        seen.add(known)
    return None


def check_keys(
    where: str, section: Any, required: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Raise ConfigError unless a section is a mapping that has the keys it must, and no others."""
    known = [*required, *optional]
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where} must be a mapping with the keys {', '.join(known)}")
    for key in section:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"have {', '.join(known)}"
            raise ConfigError(f"{where}: {key}: no such key; {hint}")
    for key in required:
        if key not in section:
            raise ConfigError(f"{where}: {key} is missing")


def read_names(where: str, names: Any) -> tuple[str, ...]:
    """Keys of a table, groups with dots. Raises ConfigError naming the section."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} must be a list of keys such as [arm], got {names}")
    return tuple(map(groups.with_dots, names))


def read_overrides(where: str, texts: Any) -> tuple[Override, ...]:
    """Overrides of one run. Raises ConfigError naming the section, or a key set twice."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where} must be a list of overrides such as [model=capsnet]")
    return tuple(grammar.parse_single(texts))


def read_text(where: str, value: Any) -> str:
    """Text for people. Raises ConfigError naming the section."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where} must be text, got {ascii(value)[:60]}")
    return value
