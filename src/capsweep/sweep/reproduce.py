"""The command that repeats a cell of the ledger with its recorded settings."""

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
    """Find the command that repeats a cell of the ledger with today's code.

    The command has the recorded overrides. If the default of another setting has changed since the
    run, the command also sets that key to its former value. If today's configuration cannot
    express the cell, the command first checks out the recorded commit, if there is one.

    Returns:
        The cell (None if today's configuration cannot express it), the command, and a line for each
        difference between the recorded run and today.

    Raises:
        UserError: The ledger holds neither the overrides nor the science of the cell. Or the
            overrides are not valid.
    """
    recorded, science = ledger.read_provenance(signature), ledger.read_science(signature)
    if not recorded.get("overrides") and science is None:
        raise UserError(f"{signature}: its provenance.json is missing, so its settings are unknown")
    overrides = _check_overrides(recorded.get("overrides", []), signature)
    cell, remarks = _compose_today(overrides, science or {}, signature)
    code = recorded.get("code", {})
    commit, checkout = code.get("commit") or "", ""
    if COMMIT.fullmatch(commit):  # checked, because the command is pasted into a shell
        checkout = f"git checkout {commit} && "
        dirty = ", with uncommitted changes" if code.get("dirty") else ""
        remarks.append(f"made at commit {commit}{dirty}")
    elif commit:
        remarks.append("provenance.json has no valid commit; the file was altered")
    if cell is None:
        return None, f"{checkout}{format_command('train', *overrides)}", remarks
    if code.get("numerics") != code_identity.hash_numerics(cell.config):
        remarks.append("the code that decides the cell's numbers has changed, or was not recorded")
    return cell, format_command("train", *cell.overrides), remarks


def _check_overrides(overrides: Sequence[str], signature: str) -> list[str]:
    """Check recorded overrides, and return them without the overrides of `places`.

    The overrides are checked because they become part of a command that a user pastes into a shell.

    Raises:
        UserError: A recorded text is not an override.
    """
    if not all(text.isprintable() and OVERRIDE.fullmatch(text) for text in overrides):
        raise UserError(f"{signature}: provenance.json has no valid overrides; it was altered")
    return [text for text in overrides if not text.startswith("places.")]


def _compose_today(
    overrides: list[str], science: Mapping[str, Any], signature: str
) -> tuple[Cell | None, list[str]]:
    """Compose a recorded cell with today's configuration.

    Args:
        overrides: The recorded overrides.
        science: The recorded science.
        signature: The recorded signature.

    Returns:
        The cell (None if today's configuration cannot express it), and a line for each difference
        between the recorded settings and today's.
    """
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
        return None, ["defaults have changed in a way that no override can undo"]
    return cell, [
        f"the default of {key} has changed: {json.dumps(there)} then, {json.dumps(here)} now"
        for key, (here, there) in changed.items()
    ]


def run_apart(overrides: Sequence[str], storage: str, ledger: str, settings: Sequence[str]) -> None:
    """Run a recorded cell again, and store it in a separate ledger.

    Args:
        overrides: The recorded overrides of the cell.
        storage: The storage for all files of the run that are not in the ledger.
        ledger: The ledger in which the result is stored.
        settings: Overrides that say how to run the cell on this machine.
    """
    from capsweep.training.run import Job, run  # it imports torch

    keys = {"logger", "rerun", *(text.partition("=")[0] for text in settings)}
    kept = [text for text in overrides if text.partition("=")[0] not in keys]
    moved = [render("places.storage", storage), render("places.ledger", ledger)]
    cell = compose.cell([*kept, *settings, *moved, "logger=csv"])
    run(Job(cell))


def compare_results(recorded: Ledger, again: Ledger, signature: str) -> tuple[bool, list[str]]:
    """Compare the metrics of a cell that is finished in two ledgers.

    Args:
        recorded: The ledger with the first run.
        again: The ledger with the second run.
        signature: The signature of the cell in both ledgers.

    Returns:
        Whether all metrics of the first run are equal to the last bit, and a line for each. If one
        differs, further lines say whether hardware, torch or code differ.
    """
    ledgers = recorded, again
    then, now = (ledger.read_result(signature) or {} for ledger in ledgers)
    lines = []
    for name, value in then["metrics"].items():
        made = now["metrics"].get(name)
        apart = "" if made is None else f" ({made - value:+.3g})"
        end = "equal" if made == value else f"now {made}{apart}"
        lines.append(f"{name} {value:.6g}: {end}")
    if then["metrics"].items() <= now["metrics"].items():
        return True, lines
    before, after = (
        describe_circumstances(ledger.read_provenance(signature, result), result)
        for ledger, result in zip(ledgers, (then, now), strict=True)
    )
    changed = [kind for kind in before if after[kind] != before[kind]]
    lines += [f"{kind} differs: {before[kind]} then, {after[kind]} now" for kind in changed]
    return False, lines if changed else [*lines, f"{', '.join(before)} are the same"]
