"""The command that makes a cell of the ledger again, at the settings it was recorded with."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capsweep.config import code_identity, compose
from capsweep.config.cell import Cell
from capsweep.config.overrides import render
from capsweep.errors import ConfigError, UserError
from capsweep.ledger.difference import differences
from capsweep.ledger.ledger import Ledger


@dataclass(frozen=True)
class Recipe:
    """How a cell is made again. cell: None when today's configuration cannot express it.

    remarks: what differs today from when the cell was made.
    """

    cell: Cell | None
    command: str
    remarks: tuple[str, ...]


def recipe(ledger: Ledger, signature: str) -> Recipe:
    """Recorded overrides, and one more for every setting whose default has changed since.

    Raises UserError when the ledger does not know how the cell was asked for.
    """
    recorded, science = ledger.provenance(signature), ledger.science(signature)
    if not recorded.get("overrides") and science is None:
        raise UserError(f"{signature}: its provenance.json is absent; nothing says how it was made")
    science = science or {}
    overrides = [o for o in recorded.get("overrides", []) if not o.startswith("places.")]
    code = recorded.get("code", {})
    cell, remarks = _today(overrides, science, signature)
    remarks += _remarks_on_code(cell, code)
    if cell is None:
        checkout = f"git checkout {code.get('commit') or 'the commit that made it'}"
        command = f"{checkout} && {shlex.join(['capsweep', 'train', *overrides])}"
        return Recipe(None, command, tuple(remarks))
    return Recipe(cell, cell.command, tuple(remarks))


def _today(
    overrides: list[str], science: Mapping[str, Any], signature: str
) -> tuple[Cell | None, list[str]]:
    try:
        cell = compose.cell(overrides)
    except ConfigError as error:
        return None, [f"today's configuration refuses these settings: {error}"]
    if cell.signature == signature:
        return cell, []
    changed = differences(cell.science, science)
    given = {override.partition("=")[0] for override in overrides}
    more = [render(d.key, d.there) for d in changed if d.key not in given]
    try:
        cell = compose.cell([*overrides, *more])
    except ConfigError as error:
        return None, [f"defaults have changed, and cannot be set back: {error}"]
    if cell.signature != signature:
        return None, ["defaults have changed in a way that overrides cannot set back"]
    return cell, [f"a default has changed since: {difference}" for difference in changed]


def _remarks_on_code(cell: Cell | None, code: Mapping[str, Any]) -> list[str]:
    remarks = []
    if code.get("commit"):
        dirty = ", with uncommitted changes" if code.get("dirty") else ""
        remarks.append(f"made at commit {code['commit']}{dirty}")
    if cell is not None and code.get("numerics") != code_identity.numerics(cell.config):
        remarks.append("the code that decides its numbers has changed since, or was not recorded")
    return remarks


def compare(recorded: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """A line per metric: equal to the last bit, or both values."""
    lines = []
    for name, value in recorded["metrics"].items():
        now = again["metrics"].get(name)
        lines.append(f"{name} {value:.6g}: " + ("equal" if now == value else f"now {now}"))
    return lines
