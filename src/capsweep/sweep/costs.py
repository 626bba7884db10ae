"""How long cells will take: from finished cells of the same shape, else from a calibration."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from capsweep.config.cell import Cell, count_steps, get, hash_shape
from capsweep.config.places import Places
from capsweep.config.validation import count_validation_examples
from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.storage.stores import join
from capsweep.sweep.plan import PlannedCell
from capsweep.training import provenance
from capsweep.training.size import Measurement

UNKNOWN = "unknown hardware"


@dataclass(frozen=True)
class Pace:
    """Seconds per training step, and once per cell."""

    per_step: float
    fixed: float


class Estimates:
    """Seconds of a cell, None when nothing of its shape was ever seen.

    Results of the same hardware count before others; a calibration counts when there is neither.
    hardware: where cells run, None: that is not known.
    """

    def __init__(self, hardware: str | None) -> None:
        self.hardware = hardware
        self._paces: dict[str, dict[str, list[Pace]]] = {}  # by shape and hardware
        self._measured: dict[str, dict[str, Measurement]] = {}

    def add(self, result: Mapping[str, Any]) -> None:
        """A finished cell; one that does not say its shape is skipped, not guessed."""
        seconds, key = result.get("seconds"), result.get("shape")
        if key is None or not seconds or not result.get("steps"):
            return
        pace = Pace(seconds["fit"] / result["steps"], seconds["total"] - seconds["fit"])
        paces = self._paces.setdefault(key, {})
        paces.setdefault(result.get("hardware") or UNKNOWN, []).append(pace)

    def add_measurement(self, measurement: Measurement) -> None:
        """A calibration."""
        self._measured.setdefault(measurement.shape, {})[measurement.hardware] = measurement

    def seconds(self, cell: Cell) -> float | None:
        """The whole run of a cell, from start to result."""
        key, hardware = hash_shape(cell), self.hardware or UNKNOWN
        if known := self._paces.get(key):
            paces = known.get(hardware) or [pace for some in known.values() for pace in some]
            per_step = median(pace.per_step for pace in paces)
            train = get(cell.config, "dataset.examples.train")
            return per_step * count_steps(cell, train) + median(pace.fixed for pace in paces)
        if measured := self._measured.get(key):
            return _apply_calibration(cell, measured.get(hardware) or [*measured.values()][-1])
        return None


def _apply_calibration(cell: Cell, measured: Measurement) -> float:
    """A calibration's seconds, evaluation of validation and test examples included."""
    examples, epochs = get(cell.config, "dataset.examples"), cell.config["epochs"]
    images = examples["test"] + count_validation_examples(cell.config["dataset"]) * epochs
    limit = cell.config["limit_batches"]
    if limit is not None:
        images = min(images, limit * 500 * (1 + epochs))
    trained = count_steps(cell, examples["train"]) * measured.seconds_per_step
    evaluated = images * measured.evaluation_seconds_per_image
    return measured.startup_seconds + trained + evaluated


class Costs(Estimates):
    """Estimates of one ledger. Cells of the plan are looked at first; the rest of the ledger is
    scanned only for a shape that they do not know.
    """

    def __init__(self, ledger: Ledger, places: Places, planned: Iterable[PlannedCell]) -> None:
        self.ledger, self.places = ledger, places
        cells = list(planned)
        # The nodes of a cluster are other machines: what they have is seen by what finishes there.
        self.address = next((c.cell.config["cluster"]["address"] for c in cells), None)
        super().__init__(provenance.name_hardware() if self.address is None else None)
        for cell in cells:
            if cell.entry.result is not None:
                super().add(cell.entry.result)
        if any(self.seconds(cell.cell) is None for cell in cells):
            self._add_measurements()
        if any(self.seconds(cell.cell) is None for cell in cells):
            known = {cell.cell.signature for cell in cells}
            others = [s for s in ledger.list_signatures() if s not in known]
            for entry in ledger.entries(others).values():
                super().add(entry.result or {})

    def add(self, result: Mapping[str, Any]) -> None:
        """A cell finished, and where it ran others will."""
        if self.address is not None:
            self.hardware = result.get("hardware")
        super().add(result)

    def _add_measurements(self) -> None:
        names = [field.name for field in fields(Measurement)]
        cure = "remove it; plan --calibrate makes it anew"
        for name in self.ledger.store.list_names("measurements"):
            content = self.ledger.store.read(f"measurements/{name}")
            where = join(self.ledger.store.root, f"measurements/{name}")
            try:
                if content is not None:
                    check = stored_files.MEASUREMENT
                    plain = stored_files.parse_json(content, where, cure, check)
                    self.add_measurement(Measurement(**{name: plain[name] for name in names}))
            except DamageError as error:
                stored_files.print_damage(error)

    def calibrate_cells(self, cells: Sequence[Cell], say: Callable[[str], object]) -> None:
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
                say(f"calibrating: 20 steps of {cell.config['model']['name']} ({hash_shape(cell)})")
                measured = calibrate(cell, self.places)
                self.ledger.store.write(measured.name, json.dumps(asdict(measured)).encode())
                self.add_measurement(measured)
