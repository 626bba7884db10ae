"""The plan: what a sweep would run, proven to be runnable before anything is taken."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import ConfigError
from capsweep.ledger import ledger as ledgers
from capsweep.ledger.ledger import Entry, Ledger
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep
from capsweep.training.size import Size, network_size

STATUSES = ("done", "stale", "running", "stopped", "missing", "failed")


@dataclass(frozen=True)
class PlannedCell:
    """One distinct cell: the places of the grid it answers, its size, what the ledger knows."""

    points: tuple[Point, ...]
    size: Size
    entry: Entry

    @property
    def cell(self) -> Cell:
        """The run itself."""
        return self.points[0].cell

    @property
    def fails_again(self) -> bool:
        """Whether it failed in a way that the same code repeats."""
        return ledgers.fails_again(self.entry)

    def is_due(self, retry_failed: bool = False) -> bool:
        """Whether a sweep runs it now."""
        rerun = self.cell.config["rerun"]
        if self.entry.status == "done":
            return rerun == "always"
        if self.entry.status == "stale":
            return rerun in ("always", "stale")
        return retry_failed or not self.fails_again


@dataclass(frozen=True)
class Plan:
    """All distinct cells of a sweep, in the order of the grid."""

    cells: tuple[PlannedCell, ...]

    def count(self, status: str) -> int:
        """Cells the ledger has in `status`."""
        return sum(planned.entry.status == status for planned in self.cells)

    @property
    def equivalent(self) -> int:
        """Places of the grid that share a cell with an earlier place."""
        return sum(len(planned.points) - 1 for planned in self.cells)


def make_plan(points: Sequence[Point], ledger: Ledger) -> Plan:
    """Merge equivalent cells, build each distinct network without memory, ask the ledger.

    Raises ConfigError naming the point whose network cannot be built.
    """
    by_signature: dict[str, list[Point]] = {}
    for point in points:
        by_signature.setdefault(point.cell.signature, []).append(point)
    sizes: dict[str, Size] = {}
    known = [_size(group[0], sizes) for group in by_signature.values()]
    entries = ledger.entries_of(group[0].cell for group in by_signature.values())
    cells = [
        PlannedCell(tuple(group), size, entries[signature])
        for (signature, group), size in zip(by_signature.items(), known, strict=True)
    ]
    return Plan(tuple(cells))


def _size(point: Point, known: dict[str, Size]) -> Size:
    """The size of a point's network, built once per distinct network."""
    config = point.cell.config
    labels = config["dataset"].get("labels_per_image")
    optimizer = config["optim"]["optimizer"]["_target_"], config["trainer"]["fused_optimizer"]
    asked = [config["model"], config["routing"], labels, optimizer]
    network = json.dumps(asked, sort_keys=True)
    if network not in known:
        try:
            known[network] = network_size(config)
        except ConfigError as error:
            raise ConfigError(f"{point.title}: {error}") from error
    return known[network]


def check_data(cells: Iterable[PlannedCell], places: Places) -> None:
    """Find and verify the data of some cells. Raises DataError naming the file."""
    seen: set[str] = set()
    for planned in cells:
        from capsweep.training import build  # it imports torch

        dataset = json.dumps(planned.cell.config["dataset"], sort_keys=True)
        if dataset not in seen:
            seen.add(dataset)
            build.build_source(planned.cell.config).check(str(places.data))


def describe(sweep: Sweep, plan: Plan) -> str:
    """The plan in a few words; what there is none of is left out, but for the common three."""
    always = ("done", "missing", "failed")
    counts = [f"{n} {s}" for s in STATUSES if (n := plan.count(s)) or s in always]
    if plan.equivalent:
        counts.append(f"{plan.equivalent} equivalent")
    text = f"{sweep.name}: {sweep.question}\n{len(plan.cells)} cells: {', '.join(counts)}"
    damaged = [f"{one.entry.cause}" for one in plan.cells if ledgers.is_damaged(one.entry)]
    return "\n".join([text, *damaged])
