"""Overrides of a test, filled up with what keeps it small."""

from collections.abc import Sequence


def fill_overrides(overrides: Sequence[str], *defaults: str) -> list[str]:
    """Overrides, and of the defaults those whose key none of them has."""
    chosen = {text.partition("=")[0] for text in overrides}
    return [*overrides, *(text for text in defaults if text.partition("=")[0] not in chosen)]
