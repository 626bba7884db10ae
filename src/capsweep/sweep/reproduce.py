"""The command that makes a cell of the ledger again, at the settings it was recorded with."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from capsweep.config import code_identity, compose, places
from capsweep.config.cell import Cell
from capsweep.config.overrides import render
from capsweep.errors import ConfigError, UserError
from capsweep.ledger import stored_files
from capsweep.ledger.causes import find_differences
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.listing import describe_circumstances
from capsweep.runtime.terminal import format_command

OVERRIDE = re.compile(r"(?!hydra\b)[A-Za-z_][A-Za-z0-9_./]*=.*")
COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Recipe:
    """How a cell is made again. cell: None when today's configuration cannot express it.

    remarks: what differs today from when the cell was made.
    """

    cell: Cell | None
    command: str
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Making:
    """What came of making a cell once. made_by: hardware, torch, code, fingerprint, in words."""

    metrics: Mapping[str, float]
    made_by: Mapping[str, str]


def read_making(ledger: Ledger, signature: str) -> Making | None:
    """Return what came of a cell; None where it is not finished."""
    if (result := ledger.read_result(signature)) is None:
        return None
    made = stored_files.read_if_sound(partial(ledger.read_provenance, signature, result)) or {}
    return Making(result["metrics"], describe_circumstances(made, result))


def find_recipe(ledger: Ledger, signature: str) -> Recipe:
    """Return recorded overrides, and one more for every setting whose default has changed since.

    Raises UserError when the ledger does not know how the cell was asked for.
    """
    recorded, science = ledger.read_provenance(signature), ledger.read_science(signature)
    if not recorded.get("overrides") and science is None:
        raise UserError(f"{signature}: its provenance.json is absent; nothing says how it was made")
    overrides = _check_overrides(recorded.get("overrides", []), signature)
    cell, remarks = _compose_today(overrides, science or {}, signature)
    code = recorded.get("code", {})
    commit, checkout = code.get("commit") or "", ""
    if COMMIT.fullmatch(commit):  # it is pasted into a shell
        checkout = f"git checkout {commit} && "
        dirty = ", with uncommitted changes" if code.get("dirty") else ""
        remarks.append(f"made at commit {commit}{dirty}")
    elif commit:
        remarks.append("the commit in its provenance.json is none; the file was altered")
    if cell is None:
        command = format_command("train", *overrides)
        return Recipe(None, f"{checkout}{command}", tuple(remarks))
    if code.get("numerics") != code_identity.hash_numerics(cell.config):
        remarks.append("the code that decides its numbers has changed since, or was not recorded")
    return Recipe(cell, format_command("train", *cell.overrides), tuple(remarks))


def _check_overrides(overrides: Sequence[str], signature: str) -> list[str]:
    """Return those of the run, without its places; they are pasted, so others are refused."""
    if not all(text.isprintable() and OVERRIDE.fullmatch(text) for text in overrides):
        raise UserError(
            f"{signature}: the overrides of its provenance.json are none; the file was altered"
        )
    return [text for text in overrides if not text.startswith("places.")]


def _compose_today(
    overrides: list[str], science: Mapping[str, Any], signature: str
) -> tuple[Cell | None, list[str]]:
    """Return the cell by today's configuration, and what differs; None: it cannot be expressed."""
    try:
        cell = compose.cell(overrides)
        if cell.signature == signature:
            return cell, []
        changed = find_differences(cell.science, science)
        given = {override.partition("=")[0] for override in overrides}
        more = [render(d.key, d.there) for d in changed if d.key not in given]
        cell = compose.cell([*overrides, *more])
    except ConfigError as error:
        return None, [f"today's configuration refuses these settings: {error}"]
    if cell.signature != signature:
        return None, ["defaults have changed in a way that overrides cannot set back"]
    return cell, [f"a default has changed since: {difference}" for difference in changed]


def compare_metrics(recorded: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """Return a line per metric: equal to the last bit, or both values and their distance."""
    lines = []
    for name, value in recorded.items():
        now = again.get(name)
        apart = "" if now is None else f" ({now - value:+.3g})"
        lines.append(f"{name} {value:.6g}: " + ("equal" if now == value else f"now {now}{apart}"))
    return lines


def run_apart(overrides: Sequence[str], storage: str, ledger: str, settings: Sequence[str]) -> None:
    """Run a cell into a ledger of its own. settings: overrides of how to run it here."""
    from capsweep.training.run import run  # it imports torch

    keys = {"logger", "rerun", *(text.partition("=")[0] for text in settings)}
    kept = [text for text in overrides if text.partition("=")[0] not in keys]
    moved = [render("places.storage", storage), render("places.ledger", ledger)]
    cell = compose.cell([*kept, *settings, *moved, "logger=csv"])
    run(cell, places.resolve(cell.config["places"]))


def explain_difference(recorded: Making, again: Making) -> Iterator[str]:
    """Yield which circumstances of two makings of a cell differ."""
    changed = [kind for kind, then in recorded.made_by.items() if again.made_by[kind] != then]
    for kind in changed:
        yield f"{kind} differs: {recorded.made_by[kind]} then, {again.made_by[kind]} now"
    if not changed:
        kinds = ", ".join(recorded.made_by)
        yield f"{kinds} are the same: rounding of another machine does not explain it"
