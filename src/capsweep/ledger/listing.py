"""Cells as a person knows them: what was trained, by which sweep, when, and by what; by the first
letters of a signature; and failures by their cause.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from capsweep.config.cell import flatten
from capsweep.errors import ConfigError, UserError
from capsweep.ledger import causes, stored_files
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.ledger.stored_files import FAILURE
from capsweep.runtime.terminal import count_of, format_command

COLUMNS = ("signature", "state", "error", "data", "epochs", "seed", "date", "sweep", "arm, place")
KEYS = ("dataset", "epochs", "seed")
UNRECORDED = "what nobody recorded"
CANDIDATES = 5  # cells that are named where a prefix is that of several


@dataclass(frozen=True)
class ListedCell:
    """What a cell is. None, or no leaves: nobody recorded it.

    leaves: dotted keys of its science, the source of its data set, the sweep that trained it
    (`train`: it was run by itself) and the arm. place: in that sweep, without the seed. date: when
    it was finished, else begun.
    """

    signature: str
    entry: Entry
    leaves: Mapping[str, Any]
    place: str | None
    date: datetime | None

    def value_of(self, key: str) -> Any:
        """The value of a key, the name of a group; None where the cell has none."""
        value = causes.value_of(self.leaves, key)
        return self.leaves.get(f"{key}.name") if value is None else value

    @property
    def fields(self) -> tuple[str, ...]:
        """What COLUMNS names, and why it failed or who runs it; `-` where nobody knows."""
        entry, date = self.entry, None if self.date is None else self.date.astimezone()
        error = None if entry.result is None else entry.result["metrics"].get("test/error")
        settings = [self.value_of(key) for key in KEYS]
        remark = entry.cause or entry.owner
        return (
            *(self.signature, entry.status),
            "-" if error is None else f"{100 * error:.2f} %",
            *("-" if value is None else str(value) for value in settings),
            "-" if date is None else f"{date:%Y-%m-%d %H:%M}",
            self.value_of("sweep") or "-",
            (self.place or "-") + (f"  {remark}" if remark else ""),
        )

    def to_plain(self) -> dict[str, Any]:
        """What is recorded, as JSON has it."""
        date = None if self.date is None else self.date.isoformat()
        settings = {key: self.value_of(key) for key in (*KEYS, "sweep", "arm")}
        return settings | {"place": self.place, "date": date}

    def __str__(self) -> str:
        seed = f"seed {self.value_of('seed')}"
        return f"{self.place or 'not recorded'} · {seed} ({self.value_of('sweep') or 'no sweep'})"


def list_cells(ledger: Ledger, signatures: Iterable[str]) -> list[ListedCell]:
    """What some cells are. A damaged provenance is printed, and counts as none."""
    entries = ledger.read_entries(signatures)
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda item: _read_cell(ledger, *item), entries.items()))


def _read_cell(ledger: Ledger, signature: str, entry: Entry) -> ListedCell:
    read = partial(ledger.read_provenance, signature, entry.result)
    made = stored_files.read_if_sound(read) or {}
    # The provenance of cells of earlier code has no science; YAML is slow to read.
    if (science := made.get("science")) is None:
        science = stored_files.read_if_sound(partial(ledger.read_science, signature)) or {}
    tracking = made.get("tracking", {})
    origin = {"sweep": tracking.get("group"), "arm": tracking.get("job_type")}
    date = (entry.result or {}).get("finished") or made.get("started")
    name = tracking.get("name")  # of its W&B run; None where it was given none
    return ListedCell(
        signature=signature,
        entry=ledger.judge(signature, entry, science) if science else entry,
        leaves=flatten(science) | tracking.get("columns", {}) | origin,
        place=name and name.removesuffix(f" · seed {science.get('seed')}"),
        date=None if date is None else datetime.fromisoformat(date),
    )


def describe_circumstances(made: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, str]:
    """Return what made a finished cell, in words: hardware, torch and code. made: its provenance.
    The fingerprint of its data is part of its signature.
    """
    values = {
        "hardware": read_hardware(made),
        "torch": made.get("versions", {}).get("torch"),
        "code": {**made.get("code", {}), **result.get("code", {})}.get("numerics"),
    }
    return {kind: UNRECORDED if v is None else str(v) for kind, v in values.items()}


def read_hardware(provenance: Mapping[str, Any]) -> str | None:
    """Return the name of the GPU or processor that trained a cell, as `provenance.json` has it.

    A processor's name includes its vector instructions, because they change the rounding of sums.
    """
    hardware = provenance.get("hardware", {})
    if gpus := hardware.get("gpus"):
        return gpus[0]
    processor, vectors = hardware.get("processor"), hardware.get("capability")
    return f"{processor} ({vectors})" if processor and vectors else processor


def _as_text(value: Any) -> str:
    """Equal for 0 and 0.0, and for the precision 32, which is stored as a text."""
    if value is None:
        return "null"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def select_cells(cells: Sequence[ListedCell], texts: Iterable[str]) -> list[ListedCell]:
    """The cells that have one of the values at the key of each override. Raises ConfigError for a
    key or a value that no cell has, naming those that there are.
    """
    from capsweep.config import overrides  # it imports Hydra

    selected = list(cells)
    for override in map(overrides.parse, texts):
        key, wanted = override.key, set(map(_as_text, override.values))
        values = {cell.signature: _as_text(cell.value_of(key)) for cell in cells}
        if cells and not wanted & (have := {*values.values()}):
            leaves = {leaf: None for cell in cells for leaf in cell.leaves}
            if have == {"null"} and key not in leaves:
                raise ConfigError(overrides.describe_unknown_key(key, leaves))
            known, asked = ", ".join(sorted(have)[:9]), ",".join(sorted(wanted))
            raise ConfigError(f"{key}={asked}: no cell has that; have {known}")
        selected = [cell for cell in selected if values[cell.signature] in wanted]
    return selected


def group_failures(cells: Iterable[ListedCell]) -> list[list[ListedCell]]:
    """Return the failed ones of some cells by their cause, the largest group first."""
    groups: dict[str, list[ListedCell]] = {}
    for cell in cells:
        if cell.entry.status == "failed" and cell.entry.cause is not None:
            # Step 12 and step 13 are the same failure.
            groups.setdefault(re.sub(r"\d", "#", cell.entry.cause), []).append(cell)
    return sorted(groups.values(), key=len, reverse=True)


def read_failure(ledger: Ledger, signature: str) -> str:
    """Return what a failed cell left of its failure; a damaged file is printed and left out."""
    content = stored_files.read_if_sound(partial(ledger.read, signature, FAILURE)) or b""
    return content.decode(errors="replace").strip()


def format_show(ledger: Ledger, signature: str) -> str:
    """Return the command that prints all that is known of a cell, why it failed included."""
    return format_command("ledger", "show", signature, f"LEDGER={ledger.store.root}")


def find_signature(ledger: Ledger, prefix: str) -> str:
    """The one signature that begins so.

    Raises UserError for none, and for several, of which it names the first.
    """
    names = ledger.list_signatures(prefix) if prefix else []
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError(f"{prefix!r}: no cell of {ledger.store.root}; see `capsweep ledger ls`")
    lines = [f"\n  {cell.signature}  {cell}" for cell in list_cells(ledger, names[:CANDIDATES])]
    text = f"{prefix}: {count_of(len(names), 'cell')} begin so; type more letters of one"
    raise UserError(text + "".join(lines))
