"""Submission ids: `capsweep-NAME-CHOICES-NUMBER`, readable, and the same for the same command, so
that of two submitters at once one alone can take it."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FORM = re.compile(r"capsweep-(?P<sweep>.+)-(?P<choices>[0-9a-f]{8})-(?P<number>[0-9]+)")


@dataclass(frozen=True)
class Name:
    """Which sweep, a hash of all that was chosen, and the how-many-eth run of that."""

    sweep: str
    choices: str
    number: int = 1

    def __str__(self) -> str:
        return f"capsweep-{self.sweep}-{self.choices}-{self.number}"

    def is_of(self, other: "Name") -> bool:
        """Whether both run the same command."""
        return (self.sweep, self.choices) == (other.sweep, other.choices)


def of(sweep: str, words: Sequence[str]) -> Name:
    """The name of the first run of a command; words: after `capsweep`."""
    choices = hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()[:8]
    return Name(of_sweep(sweep), choices)


def of_sweep(sweep: str) -> str:
    """The name of a sweep as it stands in a submission id: a part of a URL and of file names."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", sweep)


def read(submission_id: str) -> Name | None:
    """What an id says; None for a job of somebody else."""
    match = FORM.fullmatch(submission_id)
    return match and Name(match["sweep"], match["choices"], int(match["number"]))


def next_after(name: Name, taken: Iterable[Name]) -> Name:
    """The id of the next run: Ray takes none twice, not even when the first is over."""
    numbers = [one.number for one in taken if one.is_of(name)]
    return Name(name.sweep, name.choices, max(numbers, default=0) + 1)
