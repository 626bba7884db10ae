"""List the cells of a ledger for a user, and select cells by settings, signature or failure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from capsweep.config.cell import flatten
from capsweep.errors import ConfigError, UserError
from capsweep.ledger import causes, stored_files
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.runtime.terminal import count_of, format_command

COLUMNS = ("signature", "state", "error", "data", "epochs", "seed", "date", "sweep", "arm, place")
KEYS = ("dataset", "epochs", "seed")
UNRECORDED = "an unrecorded value"
CANDIDATES = 5  # maximum number of cells in the message if several signatures fit the typed letters


@dataclass(frozen=True)
class ListedCell:
    """A cell with its settings, its sweep and its date, as a listing shows them.

    Attributes:
        signature: The signature of the cell.
        entry: The state of the cell.
        leaves: The settings of the cell by dotted key: its science, `dataset.source`, `sweep`,
            `arm` and `status`. `sweep` is the name of the sweep that trained the cell, or "train"
            if there was none. `status` is the state of the cell.
        place: The place of the cell in the grid of the sweep, as a text without the seed; None: not
            recorded.
        date: When the cell finished, or when an unfinished cell started; None: not recorded.
    """

    signature: str
    entry: Entry
    leaves: Mapping[str, Any]
    place: str | None
    date: datetime | None

    def value_of(self, key: str) -> Any:
        """Return the value of a dotted key; None if the cell does not have the key.

        For a group such as `dataset`, the value is that of `dataset.name`.
        """
        value = causes.value_of(self.leaves, key)
        return self.leaves.get(f"{key}.name") if value is None else value

    @property
    def fields(self) -> tuple[str, ...]:
        """The cell's row in a listing, with one text for each column of COLUMNS.

        The last text includes the cause of a failed cell, or the process of a running cell. The
        text of an unknown value is `-`.
        """
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
        """Return the state, the main settings, the place and the date of the cell for JSON.

        The main settings are those of KEYS, the sweep and the arm.
        """
        settings = {key: self.value_of(key) for key in (*KEYS, "sweep", "arm")}
        origin = {"place": self.place, "date": self.date and self.date.isoformat()}
        return {"signature": self.signature, **vars(self.entry), **settings, **origin}

    def __str__(self) -> str:
        seed = f"seed {self.value_of('seed')}"
        return f"{self.place or 'not recorded'} · {seed} ({self.value_of('sweep') or 'no sweep'})"


def list_cells(ledger: Ledger, signatures: Iterable[str]) -> list[ListedCell]:
    """Read cells for a listing, and report a damaged provenance or configuration on stderr."""
    entries = ledger.read_entries(signatures)
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda item: _read_cell(ledger, *item), entries.items()))


def _read_cell(ledger: Ledger, signature: str, entry: Entry) -> ListedCell:
    read_if_sound = stored_files.read_if_sound
    provenance = read_if_sound(ledger.read_provenance, signature, entry.result) or {}
    # A provenance of an earlier version lacks the science configuration. Only in this case is
    # config.yaml read, because a second read is slow.
    if (science := provenance.get("science")) is None:
        science = read_if_sound(ledger.read_science, signature) or {}
    tracking = provenance.get("tracking", {})
    entry = ledger.judge(signature, entry, science) if science else entry
    origin = {"sweep": tracking.get("group"), "arm": tracking.get("job_type")}
    date = (entry.result or {}).get("finished") or provenance.get("started")
    name = tracking.get("name")  # name of the W&B run; None: the run has no name
    return ListedCell(
        signature=signature,
        entry=entry,
        leaves=flatten(science) | tracking.get("columns", {}) | origin | {"status": entry.status},
        place=name and name.removesuffix(f" · seed {science.get('seed')}"),
        date=None if date is None else datetime.fromisoformat(date),
    )


def describe_circumstances(origin: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, str]:
    """Describe the hardware, the version of torch and the code that trained a finished cell.

    The data is not described, because the signature of the cell includes the fingerprint of the
    data.

    Args:
        origin: The provenance of the cell.
        result: The result of the cell.

    Returns:
        A text for each of `hardware`, `torch` and `code`; UNRECORDED if nothing was recorded.
    """
    values = {
        "hardware": read_hardware(origin),
        "torch": origin.get("versions", {}).get("torch"),
        "code": {**origin.get("code", {}), **result.get("code", {})}.get("numerics"),
    }
    return {kind: UNRECORDED if v is None else str(v) for kind, v in values.items()}


def read_hardware(provenance: Mapping[str, Any]) -> str | None:
    """Return the name of the first GPU in a provenance; without a GPU, the name of the processor.

    The result is None if neither is recorded.
    A processor's name includes its vector instructions, because they change the rounding of sums.
    """
    hardware = provenance.get("hardware", {})
    if gpus := hardware.get("gpus"):
        return gpus[0]
    processor, vectors = hardware.get("processor"), hardware.get("capability")
    return f"{processor} ({vectors})" if processor and vectors else processor


def _as_text(value: Any) -> str:
    """Convert a value to a text for comparisons.

    The values 0 and 0.0 have the same text. So do the values 32 and "32".
    """
    if value is None:
        return "null"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def select_cells(cells: Sequence[ListedCell], texts: Iterable[str]) -> list[ListedCell]:
    """Select the cells that agree with all overrides.

    Args:
        cells: The cells.
        texts: Overrides such as "seed=1,2". A cell agrees with an override if the cell has one of
            the override's values.

    Raises:
        ConfigError: If a text is not a valid override, if no cell has the key of an override, or if
            no cell has any of the override's values. The message lists some existing keys or
            values.
    """
    from capsweep.config import overrides  # this imports Hydra

    selected = list(cells)
    for override in map(overrides.parse, texts):
        key, wanted = override.key, set(map(_as_text, override.values))
        values = {cell.signature: _as_text(cell.value_of(key)) for cell in cells}
        if cells and not wanted & (have := {*values.values()}):
            leaves = {leaf: None for cell in cells for leaf in cell.leaves}
            if have == {"null"} and key not in leaves:
                raise ConfigError(overrides.describe_unknown_key(key, leaves))
            known, typed = ", ".join(sorted(have)[:9]), ",".join(sorted(wanted))
            raise ConfigError(f"{key}={typed}: no cell has this value; the cells have {known}")
        selected = [cell for cell in selected if values[cell.signature] in wanted]
    return selected


def group_failures(cells: Iterable[ListedCell]) -> list[list[ListedCell]]:
    """Group failed cells by the cause of the failure, and return the largest group first."""
    groups: dict[str, list[ListedCell]] = {}
    for cell in cells:
        if cell.entry.status == "failed" and cell.entry.cause is not None:
            # Causes that differ only in digits, such as step 12 and step 13, are in one group.
            groups.setdefault(re.sub(r"\d", "#", cell.entry.cause), []).append(cell)
    return sorted(groups.values(), key=len, reverse=True)


def read_failure(ledger: Ledger, signature: str) -> str:
    """Return the text of error.txt, or "" if the file is absent or damaged.

    A damaged file is reported on stderr.
    """
    content = stored_files.read_if_sound(ledger.read, signature, stored_files.FAILURE) or b""
    return content.decode(errors="replace").strip()


def format_show(ledger: Ledger, signature: str) -> str:
    """Return the command that shows a cell and the cause of its failure."""
    return format_command("ledger", "show", signature, f"LEDGER={ledger.store.root}")


def find_signature(ledger: Ledger, prefix: str) -> str:
    """Return the only signature in the ledger that begins with `prefix`.

    Raises:
        UserError: If no signature or more than one signature begins with `prefix`.
    """
    names = ledger.list_signatures(prefix) if prefix else []
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError(f"{prefix!r}: no cell in {ledger.store.root}; see `capsweep ledger ls`")
    lines = [f"\n  {cell.signature}  {cell}" for cell in list_cells(ledger, names[:CANDIDATES])]
    text = f"{prefix}: {count_of(len(names), 'cell')} begin with this; type more letters"
    raise UserError(text + "".join(lines))
