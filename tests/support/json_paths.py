"""Where values are inside of JSON."""

from collections.abc import Iterator
from typing import Any


def list_paths(value: Any) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to every value inside of a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (key,)
        if isinstance(inner, (dict, list)):
            yield from ((key, *rest) for rest in list_paths(inner))
