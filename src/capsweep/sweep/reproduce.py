"""The command that makes a cell of the ledger again, at the settings it was recorded with."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from capsweep.config import code_identity, compose
from capsweep.config.cell import Cell
from capsweep.config.overrides import render
from capsweep.errors import ConfigError, UserError
from capsweep.ledger.causes import find_differences
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.listing import describe_circumstances
from capsweep.runtime.terminal import format_command

OVERRIDE = re.compile(r"(?!hydra\b)[A-Za-z_][A-Za-z0-9_./]*=.*")
COMMIT = re.compile(r"[0-9a-f]{7,64}")


def find_recipe(ledger: Ledger, signature: str) -> tuple[Cell | None, str, list[str]]:
    """Return a cell as today's configuration has it, the command that makes it again, and what
    differs today from when it was made.

    It has the recorded overrides, and one more for every setting whose default has changed since;
    None: today's configuration cannot express it. Raises UserError when the ledger does not know
    how the cell was asked for.
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
        return None, f"{checkout}{format_command('train', *overrides)}", remarks
    if code.get("numerics") != code_identity.hash_numerics(cell.config):
        remarks.append("the code that decides its numbers has changed since, or was not recorded")
    return cell, format_command("train", *cell.overrides), remarks


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
        more = [render(key, there) for key, (_, there) in changed.items() if key not in given]
        cell = compose.cell([*overrides, *more])
    except ConfigError as error:
        return None, [f"today's configuration refuses these settings: {error}"]
    if cell.signature != signature:
        return None, ["defaults have changed in a way that overrides cannot set back"]
    return cell, [
        f"a default has changed since: {key}: {json.dumps(here)} here, {json.dumps(there)} there"
        for key, (here, there) in changed.items()
    ]


def run_apart(overrides: Sequence[str], storage: str, ledger: str, settings: Sequence[str]) -> None:
    """Run a cell into a ledger of its own. settings: overrides of how to run it here."""
    from capsweep.training.run import Job, run  # it imports torch

    keys = {"logger", "rerun", *(text.partition("=")[0] for text in settings)}
    kept = [text for text in overrides if text.partition("=")[0] not in keys]
    moved = [render("places.storage", storage), render("places.ledger", ledger)]
    cell = compose.cell([*kept, *settings, *moved, "logger=csv"])
    run(Job(cell))


def compare_results(recorded: Ledger, again: Ledger, signature: str) -> tuple[bool, list[str]]:
    """Return whether a finished cell of two ledgers has the same metrics, to the last bit; and
    lines: each metric, and where one differs, which circumstances do.
    """
    ledgers = recorded, again
    then, now = (ledger.read_result(signature) or {} for ledger in ledgers)
    lines = []
    for name, value in then["metrics"].items():
        made = now["metrics"].get(name)
        apart = "" if made is None else f" ({made - value:+.3g})"
        end = "equal" if made == value else f"now {made}{apart}"
        lines.append(f"{name} {value:.6g}: {end}")
    if then["metrics"] == now["metrics"]:
        return True, lines
    before, after = (
        describe_circumstances(ledger.read_provenance(signature, result), result)
        for ledger, result in zip(ledgers, (then, now), strict=True)
    )
    changed = [kind for kind in before if after[kind] != before[kind]]
    lines += [f"{kind} differs: {before[kind]} then, {after[kind]} now" for kind in changed]
    return False, lines if changed else [*lines, f"{', '.join(before)} are the same"]
