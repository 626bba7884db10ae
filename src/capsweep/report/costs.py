"""What the rows of a table cost, beside what they reach."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from capsweep.report.cells import FieldCells, KnownCell
from capsweep.report.table import ResultTable

UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


@dataclass(frozen=True)
class Cost:
    """A complete field: seconds of a cell (mean over its seeds; None where a result does not tell),
    parameters, and mean and standard deviation of the table's metric.
    """

    name: str
    row: int
    seconds: float | None
    parameters: int | None
    mean: float
    std: float | None


@dataclass(frozen=True)
class RowCosts:
    """of: the costs, in the order of the table. clock: what the seconds are of, "GPU" where they
    are an accelerator's, else "wall". hardware: all that the cells ran on. incomplete: how many
    fields lack seeds.
    """

    of: tuple[Cost, ...]
    clock: str
    hardware: tuple[str, ...]
    incomplete: int

    @property
    def unit(self) -> tuple[str, float]:
        """The unit in which the dearest cell has no small number, and its seconds."""
        longest = max((cost.seconds for cost in self.of if cost.seconds is not None), default=0.0)
        return next((unit for unit in UNITS if longest >= unit[1] / 2), UNITS[-1])


def collect_costs(table: ResultTable, fields: Sequence[FieldCells]) -> RowCosts:
    """Of the complete fields among some of one column."""
    cells = [cell for field in fields for cell in field.counted_cells]
    on_gpus = bool(cells) and all(
        cell.result.get("gpu_hours") for cell in cells
    )  # 0 where it has none
    found = []
    for field in fields:
        value = table.rows[field.row].values[field.column]
        if value is None or not value.is_complete or value.summary is None:
            continue
        seconds = [_training_seconds(cell, on_gpus) for cell in field.counted_cells]
        told = [s for s in seconds if s is not None]
        summary = value.summary
        mean_seconds = fmean(told) if told and len(told) == len(seconds) else None
        parameters = next((c.result.get("parameters") for c in field.counted_cells), None)
        found.append(
            Cost(field.name, field.row, mean_seconds, parameters, summary.mean, summary.std)
        )
    hardware = dict.fromkeys(name for cell in cells if (name := hardware_of(cell)))
    clock = "GPU" if on_gpus else "wall"
    return RowCosts(tuple(found), clock, tuple(hardware), len(fields) - len(found))


def hardware_of(cell: KnownCell) -> str | None:
    """What decided its speed: its GPUs, else its processor; None where nobody wrote it down."""
    return cell.result.get("hardware") or hardware_in(cell.provenance)


def hardware_in(provenance: Mapping[str, Any]) -> str | None:
    """The same from what was written down when the cell began."""
    known = provenance.get("hardware", {})
    gpus = known.get("gpus") or []
    return gpus[0] if gpus else known.get("processor")


def _training_seconds(cell: KnownCell, on_gpus: bool) -> float | None:
    if on_gpus:
        return 3600 * cell.result["gpu_hours"]
    return cell.result.get("seconds", {}).get("total")
