"""A reader for untrusted YAML, with limits on the size and the depth of a document.

In files that people write, a value means the same as on the command line. A word such as `yes` is
refused, because some programs read it as a value and others as text. Stored configurations are
written and read as YAML 1.1.

Deep nesting would crash the process, because libyaml's composer is recursive. A few aliases can
expand to any number of values. Parsing the text to a stream of events has neither danger, so the
events are checked before values are made. A section may have each key only once.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from capsweep.errors import ConfigError

MOST_BYTES = 1_000_000
DEEPEST = 64  # levels of nesting


class _StrictLoader(yaml.CSafeLoader):
    """A YAML loader for plain data; it refuses a section that has the same key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Read a section; raise ConfigError if the section has the same key twice."""
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                line = node.start_mark.line + 1
                raise ConfigError(f"{key} is given twice in the section at line {line}; keep one")
            keys.add(key)
        return super().construct_mapping(node, deep)


class PlainLoader(_StrictLoader):
    """A strict loader whose values mean the same in conf/, in sweeps/ and on the command line.

    null, true, false and decimal numbers such as 1e-3 are values; other text is text. But unquoted
    text such as `yes` or `0x10` is refused, because OmegaConf (YAML 1.1), YAML 1.2 and Hydra's
    command line do not all read the same value from it.
    """

    def refuse(self, node: yaml.ScalarNode) -> None:
        """Raise ConfigError for text whose value depends on the program that reads it."""
        raise ConfigError(
            f"line {node.start_mark.line + 1}: {node.value[:40]}: some programs read this as text, "
            "others as a value; write a number in decimal digits, null, true or false, or put text "
            "in quotes"
        )


_WHOLE, _REFUSED = "(0|[1-9][0-9]*)", "!refused"
PlainLoader.yaml_implicit_resolvers = {}  # the first pattern below that matches decides
for _tag, _pattern in {
    "tag:yaml.org,2002:null": "~|null|Null|NULL|",
    "tag:yaml.org,2002:bool": "true|True|TRUE|false|False|FALSE",
    "tag:yaml.org,2002:int": f"[-+]?{_WHOLE}",
    "tag:yaml.org,2002:float": rf"[-+]?{_WHOLE}(\.[0-9]*)?(e[-+]?[0-9]+)?|\.[0-9]+(e[-+][0-9]+)?",
    _REFUSED: r"null|true|false|yes|no|on|off|[-+]?\.?(inf|nan)|[-+]?0(b[01_]+|o[0-7]+|x[0-9a-f_]+)"
    r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])*(\.[0-9_]*)?(e[-+]?[0-9_]+)?|[-+]?\.[0-9][0-9_]*(e.*)?",
}.items():
    _flags = re.IGNORECASE if _tag.endswith(("float", _REFUSED)) else 0
    PlainLoader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z", _flags), None)
PlainLoader.add_constructor(_REFUSED, PlainLoader.refuse)


def load_file(path: Path) -> Any:
    """Read a YAML file that a person wrote.

    Raises:
        ConfigError: If the file cannot be read, if `load` refuses its text, or if it has text that
            programs read as different values.
    """
    try:
        with path.open("rb") as file:
            return load(file.read(MOST_BYTES + 1), PlainLoader)
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}") from error


def load(text: str | bytes, loader: type[_StrictLoader] = _StrictLoader) -> Any:
    """Read one YAML document.

    Raises:
        ConfigError: If the text is not YAML, is larger than MOST_BYTES, or is nested deeper than
            DEEPEST levels. Tags, aliases and a key twice in one section are errors too.
    """
    try:
        size = len(text) if isinstance(text, bytes) else len(text.encode())
        if size > MOST_BYTES:
            raise ConfigError(f"the file has {size:,} bytes; at most {MOST_BYTES:,} are read")
        _check_events(text)
        return yaml.load(text, loader)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, TypeError) as error:  # an invalid number, date or key
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from error


def load_settings(text: str | bytes) -> dict[str, Any]:
    """Read a stored configuration.

    Raises:
        ConfigError: If `load` refuses the text, or if the text is not one section of JSON values.
    """
    settings = load(text)
    with suppress(TypeError, ValueError):  # json cannot write the values
        is_plain = json.loads(json.dumps(settings, allow_nan=False)) == settings
        if is_plain and isinstance(settings, dict):
            return settings
    raise ConfigError("this is no configuration: it must be a section of JSON values")


def _check_events(text: str | bytes) -> None:
    """Raise ConfigError if the text has a tag or an alias, or is nested deeper than DEEPEST."""
    levels = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise ConfigError(f"line {line}: has a tag (!) or an alias (*); write the value itself")
        levels += isinstance(event, yaml.CollectionStartEvent)
        levels -= isinstance(event, yaml.CollectionEndEvent)
        if levels > DEEPEST:
            raise ConfigError(f"line {line}: is nested deeper than {DEEPEST} levels; use fewer")
