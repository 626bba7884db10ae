"""Failures of a sweep, grouped by cause, with what tells the failing cells from the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from capsweep.errors import DamageError
from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.plan import Plan, PlannedCell


@dataclass(frozen=True)
class Group:
    """Cells that failed in one way. `telling`: overrides that all of them have and no other cell of
    the sweep has; when there is none, those they all share that fewest others have.
    """

    kind: CauseKind
    cause: str
    cells: tuple[PlannedCell, ...]
    telling: tuple[str, ...]
    last_line: str
    command: str


def triage(plan: Plan, ledger: Ledger) -> list[Group]:
    """The failed cells of a plan, the largest group first."""
    groups: dict[tuple[CauseKind, str], list[PlannedCell]] = {}
    for planned in plan.cells:
        cause = planned.entry.cause
        if planned.entry.status == "failed" and cause is not None:
            key = causes.kind_of_cause(cause), _without_numbers(cause)
            groups.setdefault(key, []).append(planned)
    found = [_group(kind, cells, plan, ledger) for (kind, _), cells in groups.items()]
    return sorted(found, key=lambda group: -len(group.cells))


def _without_numbers(cause: str) -> str:
    """Step 12 and step 13 are the same failure."""
    return "".join("#" if letter.isdigit() else letter for letter in cause)


def _group(kind: CauseKind, cells: list[PlannedCell], plan: Plan, ledger: Ledger) -> Group:
    first = cells[0]
    assert first.entry.cause is not None
    failing = {cell.cell.signature for cell in cells}
    others = [cell for cell in plan.cells if cell.cell.signature not in failing]
    lines = [line for line in _written(ledger, first).splitlines() if line.strip()]
    return Group(
        kind,
        first.entry.cause,
        tuple(cells),
        tuple(_telling(cells, others)),
        lines[-1].strip() if lines else first.entry.cause,
        first.cell.command,
    )


def _written(ledger: Ledger, planned: PlannedCell) -> str:
    """What a failed cell left; a damaged file is its cause, and says no more."""
    try:
        content = ledger.read(planned.cell.signature, "error.txt")
    except DamageError:
        content = None
    return (content or b"").decode(errors="replace")


def _telling(failing: Sequence[PlannedCell], others: Sequence[PlannedCell]) -> list[str]:
    shared = set.intersection(*(_settings(cell) for cell in failing))
    elsewhere = [_settings(cell) for cell in others]
    found_in = {setting: sum(setting in cell for cell in elsewhere) for setting in shared}
    if not others or not found_in:
        return []
    least = min(found_in.values())
    return [] if least == len(others) else sorted(s for s, n in found_in.items() if n == least)


def _settings(planned: PlannedCell) -> set[str]:
    places = [point.cell.overrides for point in planned.points]
    return {override for overrides in places for override in overrides}
