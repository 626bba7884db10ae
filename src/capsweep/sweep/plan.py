"""The plan: what a sweep would run, proven to be runnable before anything is taken."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import ConfigError
from capsweep.sweep.expand import Point
from capsweep.sweep.ledger import Entry, Ledger
from capsweep.training import build


@dataclass(frozen=True)
class PlannedCell:
    """One distinct cell: the places of the grid it answers, its size, what the ledger knows."""

    points: tuple[Point, ...]
    parameters: int
    entry: Entry

    @property
    def cell(self) -> Cell:
        """The run itself."""
        return self.points[0].cell

    @property
    def is_due(self) -> bool:
        """Whether a sweep runs it: missing, failed, or to be run again."""
        return self.entry.status != "done" or self.cell.config["rerun"] == "always"


@dataclass(frozen=True)
class Plan:
    """All distinct cells of a sweep, in the order of the grid."""

    cells: tuple[PlannedCell, ...]

    @cached_property
    def due(self) -> tuple[PlannedCell, ...]:
        """What a sweep would run now."""
        return tuple(planned for planned in self.cells if planned.is_due)

    def count(self, status: str) -> int:
        """Cells the ledger has in `status`."""
        return sum(planned.entry.status == status for planned in self.cells)

    @property
    def equivalent(self) -> int:
        """Places of the grid that share a cell with an earlier place."""
        return sum(len(planned.points) - 1 for planned in self.cells)


def make(points: Sequence[Point], ledger: Ledger) -> Plan:
    """Merge equivalent cells, build each distinct network without memory, ask the ledger.

    Raises ConfigError naming the point whose network cannot be built.
    """
    by_signature: dict[str, list[Point]] = {}
    for point in points:
        by_signature.setdefault(point.cell.signature, []).append(point)
    sizes: dict[str, int] = {}
    cells = [
        PlannedCell(tuple(group), _size(group[0], sizes), ledger.entry(signature))
        for signature, group in by_signature.items()
    ]
    return Plan(tuple(cells))


def _size(point: Point, known: dict[str, int]) -> int:
    """Parameters of a point's network, built once per distinct network."""
    config = point.cell.config
    network = json.dumps([config["model"], config["routing"]], sort_keys=True)
    if network not in known:
        try:
            known[network] = build.check_network(config)
        except ConfigError as error:
            raise ConfigError(f"{point.title}: {error}") from error
    return known[network]


def check_data(plan: Plan, places: Places) -> None:
    """Find and verify the data of every cell that is due. Raises DataError naming the file."""
    seen: set[str] = set()
    for planned in plan.due:
        dataset = json.dumps(planned.cell.config["dataset"], sort_keys=True)
        if dataset not in seen:
            seen.add(dataset)
            build.reader(planned.cell.config).check(str(places.data))
