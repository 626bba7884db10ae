"""The schema, leaf keys to default values: which keys there are, and of which type each is."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capsweep.config import bounds, package_files
from capsweep.config.groups import groups as known_groups
from capsweep.errors import ConfigError


def list_leaves(value: Any) -> dict[str, Any]:
    """Leaf keys, dotted, to their values; a list is a leaf, and an empty section."""
    return dict(_iterate_leaves(value, ""))


def _iterate_leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _iterate_leaves(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def describe_unknown_key(key: str, schema: Mapping[str, Any]) -> str:
    """What is said of a key that the schema does not have, with the nearest that it has."""
    group, _, folder = key.replace(".", "/").partition("/")
    if (
        folder
        and group in known_groups()
        and (package_files.find_folder("conf") / group / folder).is_dir()
    ):
        # Hydra's help lists it as a group.
        return f"{key}: no such group; write {group}={folder}/OPTION"
    typed = [known for known in (*schema, *known_groups()) if "._" not in known]
    close = difflib.get_close_matches(key, typed, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "`capsweep train --help` lists the keys"
    section = key.rpartition(".")[0]
    if not close and section and any(known.startswith(f"{section}.") for known in schema):
        hint = f"another choice of {section.replace('.', '/')} may have it; {hint}"
    return f"{key}: no such key; {hint}"


def fit_types(plain: dict[str, Any], typed: Sequence[str], schema: Mapping[str, Any]) -> None:
    """Give every leaf, in place, the type its default has, so that `1` and `1.0` are one setting.

    The keys that were typed come first: what is drawn from them is wrong only because they are.
    Raises ConfigError naming the key.
    """
    values = list_leaves(plain)
    for key in sorted(values, key=lambda key: key not in typed):
        if key not in schema:
            raise ConfigError(f"{key}: no such key; its section is drawn from another kind of one")
        fitted = fit_type(key, values[key], schema[key])
        section = plain
        *parents, name = key.split(".")
        for parent in parents:
            section = section[parent]
        section[name] = fitted


def fit_type(key: str, value: Any, default: Any) -> Any:
    """The value in the type of the key's default. Raises ConfigError naming the key."""
    if default is None or key in bounds.UNTYPED:
        return float(value) if key in bounds.REAL_OR_NULL and _is_number(value) else value
    if isinstance(default, list):
        return _fit_list(key, value, default)
    if isinstance(default, float) and _is_number(value):
        return float(value)
    if isinstance(default, str) and _is_number(value):
        return str(value)
    if type(value) is not type(default):
        names = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
        expected = names.get(type(default), "a section")
        raise ConfigError(f"{key} must be {expected}, got {value!r}")
    return value


def _fit_list(key: str, value: Any, default: list[Any]) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{key} must be a list such as {default}, got {value!r}")
    return (
        [fit_type(f"{key}[{i}]", v, default[0]) for i, v in enumerate(value)] if default else value
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
