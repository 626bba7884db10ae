"""Who is told what happens to the cells of a sweep."""

from typing import Any, Protocol

from capsweep.sweep.job import Outcome


class Listener(Protocol):
    """Is told about cells by their signature."""

    def started(self, signature: str) -> None: ...

    def epoch(self, signature: str, row: dict[str, Any]) -> None: ...

    def ended(self, signature: str, outcome: Outcome) -> None: ...

    def said(self, signature: str, what: str) -> None:
        """Something a person should know: a retry, another driver."""
        ...
