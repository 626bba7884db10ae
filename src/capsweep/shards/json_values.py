"""JSON that anybody may have written: each value is of the type that is meant, or a ValueError.

No text is let through that would not print, no number that no file has, and no second value of a
key, which the first reader of the file may have taken for the only one.
"""

import json
import math
import re
from typing import Any

MOST = 2**63 - 1  # of examples, or of bytes
DEEPEST = 8  # settings within settings


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, RecursionError for one that is too deep."""
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_doubles)


def check_object(value: Any, name: str, *keys: str) -> dict[str, Any]:
    """An object; with `keys`, of exactly these."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {_name_type(value)}, not an object")
    if keys and (differing := set(keys) ^ set(value)):
        some = ", ".join(map(_shorten, sorted(differing)[:9]))
        raise ValueError(f"{name}: {some} missing or unknown")
    return value


def check_list(value: Any, name: str, number: int | None = None) -> list[Any]:
    """A list; with `number`, of so many."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_name_type(value)}, not a list")
    if number is not None and len(value) != number:
        raise ValueError(f"{name} is a list of {len(value)}, not of {number}")
    return value


def check_text(value: Any, name: str, pattern: re.Pattern[str]) -> str:
    """A text that is all of the pattern."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{name} must not be {_shorten(value)}")
    return value


def check_count(value: Any, name: str, least: int = 0) -> int:
    """A whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise ValueError(f"{name} must be a whole number from {least} on, got {_shorten(value)}")
    return value


def check_setting(value: Any, name: str, depth: int = 0) -> Any:
    """Numbers and texts, and lists and objects of them."""
    if depth > DEEPEST:
        raise ValueError(f"{name} goes deeper than {DEEPEST}")
    if isinstance(value, dict):
        for key, inner in value.items():
            check_setting(key, name)
            check_setting(inner, name, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check_setting(inner, name, depth + 1)
    elif isinstance(value, str):
        if not value.isprintable():
            raise ValueError(f"{name} must not be {_shorten(value)}")
    elif isinstance(value, int | float) and (not math.isfinite(value) or abs(value) > MOST):
        raise ValueError(f"{name} must not be {_shorten(value)}")
    return value


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands there twice")
    return made


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _name_type(value: Any) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def _shorten(value: Any) -> str:
    """As it may be printed anywhere, and not at any length."""
    if isinstance(value, int) and abs(value) > MOST:
        return "a number of more than 63 bits"
    shown = (
        ascii(value) if value is None or isinstance(value, str | int | float) else _name_type(value)
    )
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
