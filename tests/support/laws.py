"""How many examples a law is tried with: ten at most, or as many as it asks for in `make test-all`.

pytest --hypothesis-profile=many chooses the second.
"""

from typing import Any

from hypothesis import settings

FEW = 10
settings.register_profile("few", deadline=None, max_examples=FEW)
settings.register_profile("many", deadline=None, max_examples=100)
settings.load_profile("few")


def at_most_examples(most: int, **others: Any) -> settings:
    """Settings of a law that asks for so many examples."""
    is_few = settings.default.max_examples == FEW
    return settings(max_examples=min(most, FEW) if is_few else most, **others)
