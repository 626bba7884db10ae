"""`MORE_SEEDS`: add seeds to rows whose order is undecided, up to a given number of seeds.

A "look" is a test of all rows. The rows whose order is undecided in this test get more seeds. The
added seeds and the looks are stored in a file below `places.storage`, because every later table of
the sweep depends on both. A note below the table names the correction for the looks.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsweep.config.cell import hash_science
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.ledger import records, stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.statistics.seeds import LEVEL, describe_correction, find_undecided_rows, list_looks
from capsweep.storage.stores import Store, join, open_store
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

STEP = 2  # seeds between two looks


@dataclass(frozen=True)
class Added:
    """The seeds that MORE_SEEDS added to a sweep."""

    looks: tuple[int, ...]  # the number of seeds at each look, past or planned
    seeds: Mapping[str, tuple[int, ...]]  # added seeds of each place, by its `hash_place`

    @property
    def correction(self) -> str | None:
        """A note about repeated tests, for the table of the sweep; None if no seed was added."""
        return describe_correction(self.looks) if self.seeds else None

    def add_points(self, points: Sequence[Point]) -> list[Point]:
        """Return the points, followed by a point for each seed that was added to their places."""
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
    """Hash the science of a point without its seed; all seeds of a place have the same hash."""
    return hash_science({**point.cell.science, "seed": None})


def open_seed_store(node: Places) -> Store:
    """Open the store below `places.storage` that holds the added seeds of all sweeps.

    Raises:
        UserError: The store cannot be opened; the message names `places.storage`.
    """
    return open_store(node.shared, "places.storage")


def load(node: Places, sweep: Sweep) -> Added:
    """Read the added seeds and the looks of a sweep; both are empty if there is no file yet.

    Raises:
        UserError: The file is damaged.
    """
    store, name = open_seed_store(node), f"sweeps/{sweep.name}.seeds.json"
    content, where = store.read(name), join(store.root, name)
    if content is None:
        return Added((), {})
    cure = "put a copy back, or remove it: the table then has no seeds that MORE_SEEDS added"
    plain = stored_files.parse_json(content, where, cure, records.AddedSeeds)
    seeds = {place: tuple(seeds) for place, seeds in plain["seeds"].items()}
    return Added(tuple(plain["looks"]), seeds)


def plan_looks(sweep: Sweep, last: str) -> tuple[int, ...]:
    """Return one number of seeds for each look.

    The first number is the sweep's own number of seeds. The last number is the value of MORE_SEEDS.

    Raises:
        UserError: The value does not fit the sweep.
    """
    first = len(sweep.seeds)
    if sweep.search is not None:
        raise UserError(f"MORE_SEEDS={last}: {sweep.path.name} is a search, which has one seed")
    if any(arm.matched for arm in sweep.arms):
        raise UserError(
            f"MORE_SEEDS={last}: {sweep.name} has arms that are matched to {sweep.baseline} seed "
            "by seed; give all arms more seeds instead: SEEDS=5"
        )
    if not re.fullmatch("[0-9]{1,4}", last) or not 3 <= first < int(last):
        raise UserError(
            f"MORE_SEEDS={last}: must be a number above the sweep's own number of seeds, which is "
            f"{first} and must be 3 or more (SEEDS=3)"
        )
    return list_looks(first, int(last), STEP)


def plan_seeds(
    sweep: Sweep, points: Sequence[Point], ledger: Ledger, added: Added, look: int
) -> Added | None:
    """Add seeds to each undecided row until it has `look` seeds.

    Args:
        sweep: The sweep.
        points: Its points, with the seeds added so far.
        ledger: The ledger with the results of finished cells.
        added: The seeds added so far.
        look: The number of seeds that undecided rows are to have.

    Returns:
        All seeds added to the sweep, or None if no row is undecided.
    """
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
    """Store the looks of a sweep, and the seeds that were added to it."""
    text = json.dumps({"looks": added.looks, "seeds": added.seeds}, indent=2)
    open_seed_store(node).write(f"sweeps/{sweep.name}.seeds.json", f"{text}\n".encode())


def find_undecided(sweep: Sweep, points: Iterable[Point], ledger: Ledger, looks: int) -> set[str]:
    """Return the hashes of the places whose order is undecided.

    In each column, places are ranked by their mean, and each place is tested against its neighbours
    in the ranking. The order of two neighbours is undecided if their test is not significant. The
    significance level is divided by the number of columns that have two or more places with
    results, because each of these columns is a separate test.

    Args:
        sweep: The sweep.
        points: Its points, with the seeds added so far.
        ledger: The ledger with the results of finished cells.
        looks: The planned number of looks in total.
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
    return set().union(*(find_undecided_rows(rows, looks, level) for rows in ranked))
