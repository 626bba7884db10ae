"""Workers that are lost: a preempted cell is tried again for as long as it gets on.

Whether it does is seen where it begins again: at a later epoch than ever before, its checkpoint has
advanced. Spot nodes may take it any number of times then. A cell that is lost again and again from
the same epoch takes its workers with it, or has epochs longer than its nodes live.
"""

from dataclasses import dataclass
from typing import Any

from capsweep.ledger import causes

FRUITLESS = 3  # losses in a row without an advanced checkpoint, after which a cell has failed


@dataclass
class _Life:
    """epoch: of the first row since the worker began; best: the latest such epoch of all."""

    epoch: int | None = None
    best: int = -1
    fruitless: int = 0
    times: int = 0


class Losses:
    """What is known of the lost workers of each cell."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}

    def row(self, signature: str, row: dict[str, Any]) -> None:
        """A cell finished an epoch; the first since its worker began says where that began."""
        life = self._lives.setdefault(signature, _Life())
        if life.epoch is None:
            life.epoch = row["epoch"]

    def lost(self, signature: str, cause: str) -> str | None:
        """A worker is gone: None where the cell is to be tried again, else why it is not."""
        life = self._lives.setdefault(signature, _Life())
        advanced = life.epoch is not None and life.epoch > max(life.best, 0)
        life.best = max(life.best, -1 if life.epoch is None else life.epoch)
        life.fruitless = 0 if advanced else life.fruitless + 1
        life.epoch, life.times = None, life.times + 1
        if life.fruitless < FRUITLESS:
            return None
        why = cause.removeprefix(causes.describe_loss(""))
        return causes.describe_loss(
            f"{why}; {life.times} workers were lost, the last {life.fruitless} without a newer "
            "checkpoint than before: the cell may take its worker with it, or its epochs may be "
            "longer than its nodes live"
        )
