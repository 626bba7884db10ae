"""What the cells of a sweep will take, from the ledger and from calibrations."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.config.shape import shape
from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.storage.stores import join
from capsweep.sweep import estimate
from capsweep.sweep.estimate import Estimates
from capsweep.sweep.plan import PlannedCell
from capsweep.training import provenance
from capsweep.training.size import Measurement


class Costs:
    """Estimates of one ledger. Cells of the plan are looked at first; the rest of the ledger is
    scanned only for a shape that they do not know.
    """

    def __init__(self, ledger: Ledger, places: Places, planned: Iterable[PlannedCell]) -> None:
        self.ledger, self.places = ledger, places
        cells = list(planned)
        # The nodes of a cluster are other machines: what they have is seen by what finishes there.
        self.address = next((c.cell.config["cluster"]["address"] for c in cells), None)
        self.estimates = Estimates(provenance.name_hardware() if self.address is None else None)
        for cell in cells:
            if cell.entry.result is not None:
                self.estimates.add(cell.entry.result)
        if any(self.seconds(cell.cell) is None for cell in cells):
            self._add_measurements()
        if any(self.seconds(cell.cell) is None for cell in cells):
            self._add_results({cell.cell.signature for cell in cells})

    def seconds(self, cell: Cell) -> float | None:
        """The whole run of a cell, None when nothing of its shape was ever seen."""
        return self.estimates.seconds(cell)

    def seconds_of_epoch(self, cells: Sequence[Cell]) -> float | None:
        """The longest epoch of some cells, evaluation included; None where all are unknown."""
        known = [(self.seconds(cell), cell.config["epochs"]) for cell in cells]
        return max((s / epochs for s, epochs in known if s is not None), default=None)

    def origin(self, cell: Cell) -> str | None:
        """Where that estimate comes from; None where there is none."""
        return self.estimates.origin(cell)

    def add(self, result: Mapping[str, Any]) -> None:
        """A cell finished, and where it ran others will."""
        if self.address is not None:
            self.estimates.hardware = result.get("hardware")
        self.estimates.add(result)

    def facts(self, cell: Cell) -> dict[str, Any]:
        """What the result of a cell should remember of its estimate."""
        return {"estimate_seconds": self.seconds(cell)}

    def calibrate(self, cells: Sequence[Cell], say: Callable[[str], object]) -> None:
        """Time a few steps of every shape that has no estimate, here, and keep what was seen. Not
        of cells that run on other machines: a line says that their time is not known.
        """
        from capsweep.training.calibrate import calibrate

        unknown = [cell for cell in cells if self.seconds(cell) is None]
        if self.address is not None:
            if unknown:
                say(
                    f"no estimate for {len(unknown)} cells: none of their shape has finished, and "
                    "what was timed here would be of this machine, not of the nodes of "
                    f"{self.address}; --budget does not start them, --max-hours would"
                )
            return
        for cell in unknown:
            if self.seconds(cell) is None:  # the shape of one that was just timed
                say(f"calibrating: 20 steps of {cell.config['model']['name']} ({shape(cell)})")
                measured = calibrate(cell, self.places)
                self.ledger.store.write(measured.name, json.dumps(asdict(measured)).encode())
                self.estimates.add_measurement(measured)

    def accuracy(self, results: Sequence[Mapping[str, Any]]) -> str | None:
        """One line: how far the estimates of finished cells were off."""
        found = estimate.accuracy(results)
        if found is None:
            return None
        return (
            f"estimates: {found.cells} cells took {found.ratio:.2f} times what was estimated "
            f"(the worst {found.worst:.2f} times)"
        )

    def _add_measurements(self) -> None:
        for name in self.ledger.store.list_names("measurements"):
            try:
                found = self._measurement(f"measurements/{name}")
            except DamageError as error:
                stored_files.print_damage(error)
                continue
            if found is not None:
                self.estimates.add_measurement(found)

    def _measurement(self, name: str) -> Measurement | None:
        content = self.ledger.store.read(name)
        if content is None:
            return None
        where, cure = (
            join(self.ledger.store.root, name),
            "remove it; plan --calibrate makes it anew",
        )
        plain = stored_files.parse_json(content, where, cure, stored_files.MEASUREMENT)
        return Measurement(**{field.name: plain[field.name] for field in fields(Measurement)})

    def _add_results(self, known: set[str]) -> None:
        others = [s for s in self.ledger.list_signatures() if s not in known]
        for entry in self.ledger.entries(others).values():
            if entry.result is not None:
                self.estimates.add(entry.result)
