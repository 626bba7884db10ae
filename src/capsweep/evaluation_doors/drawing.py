"""What a figure of one cell is to its door: a name, options, and how it is drawn.

Doors are imported with the command line: what is heavy is imported when it draws.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from capsweep.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from capsweep.evaluation.trained import Loader, Trained


@dataclass(frozen=True)
class Drawing:
    """A picture and its numbers, to be written as evals/STEM.png and evals/STEM.npz.

    arrays: by name, without objects. picture: a PNG. caption: every choice, and what is not shown.
    """

    stem: str
    arrays: "Mapping[str, np.ndarray | int | float]"
    picture: bytes
    caption: str


Draw = Callable[["Loader", str], Iterable[Drawing]]  # of the finished cell of a signature


class Kind(Protocol):
    """A figure: a module of this package."""

    TEXT: str

    def add(self, command: argparse.ArgumentParser) -> None:
        """Add its own options, each with a default."""
        ...

    def asked(self, parsed: argparse.Namespace) -> Draw:
        """How it is drawn with these options.

        Raises UserError naming the option. What it returns raises NotApplicableError, without the
        cell's name, for a cell that has no such figure, and UserError naming option or cell.
        """
        ...


def places(text: str, option: str) -> list[int]:
    """Distinct places from 0 on, in order, of `0,5,7`. Raises UserError naming the option."""
    try:
        found = sorted({int(number) for number in text.split(",")})
    except ValueError as error:
        raise UserError(f"{option} must be places such as 0,5,7, got {text}") from error
    if found[0] < 0:
        raise UserError(f"{option} must be places from 0 on, got {found[0]}")
    return found


def check_examples(trained: "Trained", places: list[int], option: str = "--examples") -> None:
    """Raise UserError naming the option unless all are places of the test set."""
    if places[-1] >= len(trained.test):
        raise UserError(
            f"{option}: {trained.name} has the test images 0..{len(trained.test) - 1}, got "
            f"{places[-1]}"
        )


def check_counts(counts: Mapping[str, int]) -> None:
    """Raise UserError naming an option below 0, or all of them where they choose nothing."""
    for option, count in counts.items():
        if count < 0:
            raise UserError(f"{option} must be >= 0, got {count}")
    if not any(counts.values()):
        raise UserError(f"{', '.join(counts)}: one of them must be above 0")
