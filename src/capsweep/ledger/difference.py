"""Why a cell runs: the keys in which it differs from the nearest finished cell."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capsweep.config.cell import flat

ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """One key, here and there; None where a key does not exist."""

    key: str
    here: Any
    there: Any

    def __str__(self) -> str:
        return f"{self.key}: {json.dumps(self.here)} here, {json.dumps(self.there)} there"


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[Difference]:
    """Every leaf key in which two science configurations differ, sorted."""
    return _between(flat(here), flat(there))


def _between(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(key, ours.get(key), theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key, ABSENT) != theirs.get(key, ABSENT)
    ]


class Finished:
    """Finished cells, to be compared with."""

    def __init__(self, sciences: Mapping[str, Mapping[str, Any]]) -> None:
        self._flat = {signature: flat(sciences[signature]) for signature in sorted(sciences)}

    def nearest(self, science: Mapping[str, Any]) -> tuple[str, list[Difference]] | None:
        """The cell with the fewest differing keys, and those; None when there is no cell.

        Ties go to the first signature in order.
        """
        if not self._flat:
            return None
        ours = flat(science)

        def distance(signature: str) -> int:
            return len(_between(ours, self._flat[signature]))

        signature = min(self._flat, key=distance)
        return signature, _between(ours, self._flat[signature])
