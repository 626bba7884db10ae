"""Reads stored JSON as values of a type; says in one line what in it is of another."""

import reprlib
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

MOST_LETTERS = 200  # of a place, and of a reason
Value = TypeVar("Value")


def parse_json(content: bytes, adapter: TypeAdapter[Value]) -> Value:
    """Return what is stored, of the adapter's type. Raises ValueError, of one printable line."""
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise ValueError(describe_fault(error)) from error


def describe_fault(error: ValidationError) -> str:
    """Return the first field that is of another type, why, and its value, in one printable line."""
    fault, *_ = error.errors(include_url=False)
    parts = (str(part) for part in fault["loc"] if part != "[key]")
    place = ".".join(part if part.isprintable() else reprlib.repr(part) for part in parts)
    own = fault.get("ctx", {}).get("error")  # what a validator of ours raised
    is_plain = own is not None or fault["type"] == "json_invalid"
    value = "" if is_plain else f", got {reprlib.repr(fault['input'])}"
    reason = f"{str(own or fault['msg'])[:MOST_LETTERS]}{value}"
    return f"{place[:MOST_LETTERS]}: {reason}" if place else reason
