"""`MORE_SEEDS`: seeds are added where the order of two rows is undecided, up to a number.

Which seeds were added, and at which looks, is stored: every later table of the sweep says so. It is
stored below `places.storage` as typed, folder or URL, since a table without it would be another.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsweep.config.cell import signature
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.ledger import records, stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.statistics.seeds import LEVEL, describe_correction, list_looks, undecided_rows
from capsweep.storage.stores import Store, join, open_store
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

STEP = 2  # seeds between two looks


@dataclass(frozen=True)
class Added:
    """looks: numbers of seeds at which was looked; seeds: those added, by `hash_place`."""

    looks: tuple[int, ...]
    seeds: Mapping[str, tuple[int, ...]]

    @property
    def correction(self) -> str | None:
        """The sentence for the table; None when nothing was added."""
        return describe_correction(self.looks) if self.seeds else None

    def add_points(self, points: Sequence[Point]) -> list[Point]:
        """Return the points, and those of the seeds added to their places."""
        if not self.seeds:
            return list(points)
        known = {(hash_place(point), point.title, point.seed) for point in points}
        firsts = {(hash_place(point), point.title): point for point in reversed(points)}
        new = [
            replace(point, seed=seed, cell=point.cell.with_seed(seed))
            for (place, title), point in firsts.items()
            for seed in self.seeds.get(place, ())
            if (place, title, seed) not in known
        ]
        return [*points, *new]


def hash_place(point: Point) -> str:
    """Return a hash that is equal for two points if and only if they differ in the seed alone."""
    return signature({**point.cell.science, "seed": None})


def open_memory(node: Places) -> Store:
    """Return where sweeps of this storage remember. Raises UserError naming `places.storage`."""
    return open_store(node.shared, "places.storage")


def load(node: Places, sweep: Sweep) -> Added:
    """Return what was added so far; nothing when there is no file. Raises UserError for a damaged
    one.
    """
    store, name = open_memory(node), f"sweeps/{sweep.name}.seeds.json"
    content, where = store.read(name), join(store.root, name)
    if content is None:
        return Added((), {})
    cure = "put a copy back, or remove it: the table then has no seeds that MORE_SEEDS added"
    plain = stored_files.parse_json(content, where, cure, records.AddedSeeds)
    seeds = {place: tuple(seeds) for place, seeds in plain["seeds"].items()}
    return Added(tuple(plain["looks"]), seeds)


def plan_looks(sweep: Sweep, last: str) -> tuple[int, ...]:
    """Return all looks up to `last` seeds. Raises UserError naming MORE_SEEDS."""
    first = len(sweep.seeds)
    if sweep.search is not None:
        raise UserError(f"MORE_SEEDS={last}: {sweep.path.name} is a search, which has one seed")
    if any(arm.matched for arm in sweep.arms):
        raise UserError(
            f"MORE_SEEDS={last}: {sweep.name} has arms matched to {sweep.baseline} seed by "
            "seed; name more seeds for all: SEEDS=5"
        )
    if not re.fullmatch("[0-9]{1,4}", last) or not 3 <= first < int(last):
        raise UserError(
            f"MORE_SEEDS={last}: must be above the {first} seeds of the sweep, which must be three "
            "or more"
        )
    return list_looks(first, int(last), STEP)


def plan_seeds(
    sweep: Sweep, points: Sequence[Point], ledger: Ledger, added: Added, look: int
) -> Added | None:
    """Return the seeds to add so that undecided rows have `look` of them; None: all is decided."""
    places = find_undecided(sweep, points, ledger, len(added.looks))
    if not places:
        return None
    seeds = dict(added.seeds)
    have: dict[str, set[int]] = {}
    for point in points:
        have.setdefault(hash_place(point), set()).add(point.seed)
    for place in sorted(places):
        fresh = [seed for seed in range(look + max(have[place]) + 1) if seed not in have[place]]
        seeds[place] = (*seeds.get(place, ()), *fresh[: max(0, look - len(have[place]))])
    return replace(added, seeds=seeds)


def save(node: Places, sweep: Sweep, added: Added) -> None:
    """Remember what was added."""
    text = json.dumps({"looks": added.looks, "seeds": added.seeds}, indent=2)
    open_memory(node).write(f"sweeps/{sweep.name}.seeds.json", f"{text}\n".encode())


def find_undecided(sweep: Sweep, points: Iterable[Point], ledger: Ledger, looks: int) -> set[str]:
    """Return the places whose order beside a neighbour, in their column, is not decided.

    The level is shared out over the columns too: each is another chance to be misled.
    """
    columns: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}
    for point in points:
        result = ledger.read_result(point.cell.signature)
        if result is not None and sweep.metric in result["metrics"]:
            column = tuple(map(point.coordinate, sweep.columns))
            rows = columns.setdefault(column, {})
            rows.setdefault(hash_place(point), {})[point.seed] = result["metrics"][sweep.metric]
    ranked = [rows for rows in columns.values() if len(rows) > 1]
    level = LEVEL / max(1, len(ranked))
    return set().union(*(undecided_rows(rows, looks, level) for rows in ranked))
