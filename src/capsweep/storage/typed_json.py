"""Reads stored JSON as values of a type; says in one line what in it is of another."""

import reprlib
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

Value = TypeVar("Value")


def parse_json(content: bytes, adapter: TypeAdapter[Value]) -> Value:
    """Return what is stored, of the adapter's type. Raises ValueError, of one printable line."""
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False, include_context=False)
        places = [part for part in map(str, first["loc"]) if part != "[key]"]
        name = ".".join(part if part.isprintable() else reprlib.repr(part) for part in places)
        value = "" if first["type"] == "json_invalid" else f", got {reprlib.repr(first['input'])}"
        place = f"{name[:200]}: " if name else ""
        raise ValueError(f"{place}{first['msg'][:200]}{value}") from error
