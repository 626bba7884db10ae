"""Why a cell runs: the keys in which it differs from the nearest finished cell."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capsweep.config.cell import NEUTRAL, flat

ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """One key, here and there; None where a key does not exist."""

    key: str
    here: Any
    there: Any

    def __str__(self) -> str:
        key = self.key if self.key.isprintable() else json.dumps(self.key)
        return f"{key}: {json.dumps(self.here)} here, {json.dumps(self.there)} there"


def find_differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[Difference]:
    """Every leaf key in which two science configurations differ, sorted.

    One that is older than an option has it at its neutral value, as its signature says.
    """
    return _compare_leaves(flat(here), flat(there))


def _compare_leaves(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Difference]:
    found = []
    for key in sorted(ours.keys() | theirs.keys()):
        here, there = _value_of(ours, key), _value_of(theirs, key)
        if here != there:
            pair = (None if value is ABSENT else value for value in (here, there))
            found.append(Difference(key, *pair))
    return found


def _value_of(leaves: Mapping[str, Any], key: str) -> Any:
    """The value of a leaf; neutral where its group stands and does not have it."""
    if key in leaves or key not in NEUTRAL:
        return leaves.get(key, ABSENT)
    group, _, inside = key.partition(".")
    stands = not inside or any(leaf.startswith(f"{group}.") for leaf in leaves)
    return NEUTRAL[key] if stands else ABSENT


class FinishedCells:
    """Finished cells, to be compared with."""

    def __init__(self, sciences: Mapping[str, Mapping[str, Any]]) -> None:
        self._flat = {signature: flat(sciences[signature]) for signature in sorted(sciences)}

    def find_nearest(self, science: Mapping[str, Any]) -> tuple[str, list[Difference]] | None:
        """The cell with the fewest differing keys, and those; None when there is no cell.

        Ties go to the first signature in order.
        """
        if not self._flat:
            return None
        ours = flat(science)

        def distance(signature: str) -> int:
            return len(_compare_leaves(ours, self._flat[signature]))

        signature = min(self._flat, key=distance)
        return signature, _compare_leaves(ours, self._flat[signature])
