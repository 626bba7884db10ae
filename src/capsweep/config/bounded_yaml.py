"""YAML that a person or another machine wrote, read with bounds on its size and depth.

What a person writes has the value that it has on the command line; text that programs read as
different values is refused. Stored configurations are read as they are written, by YAML 1.1.

libyaml's composer calls itself once per level, so that deep text ends the process; and a few lines
of aliases make any number of values. The stream of events does neither: it is looked at first.
A key may stand once in a section.
"""

import json
import re
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


class PlainLoader(_StrictLoader):
    """A strict loader by which one text means one thing: in conf/, in sweeps/ and when it is typed.

    null, true, false and decimal numbers are these (1e-3 is one), all else is text. What OmegaConf
    (YAML 1.1), YAML 1.2 or Hydra's command line alone reads as a value, is refused.
    """

    def refuse(self, node: yaml.ScalarNode) -> None:
        """Raise ConfigError for text whose value depends on who reads it."""
        raise ConfigError(
            f"line {node.start_mark.line + 1}: {node.value[:40]}: some programs read this as text, "
            "others as a value; write a number in decimal digits, null, true or false, or put text "
            "in quotes"
        )


_WHOLE, _REFUSED = "(0|[1-9][0-9]*)", "!refused"
PlainLoader.yaml_implicit_resolvers = {}  # of those below the first that matches is taken
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

    Raises ConfigError as `load`, where it cannot be read, and for text of two meanings.
    """
    try:
        with path.open("rb") as file:
            return load(file.read(MOST_BYTES + 1), PlainLoader)
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}") from error


def load(text: str | bytes, loader: type[_StrictLoader] = _StrictLoader) -> Any:
    """Return the content of one YAML document. Raises ConfigError: too large, too deep, no YAML."""
    try:
        size = len(text) if isinstance(text, bytes) else len(text.encode())
        if size > MOST_BYTES:
            raise ConfigError(f"it is {size:,} bytes large; at most {MOST_BYTES:,} are read")
        _check_events(text)
        return yaml.load(text, loader)
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
