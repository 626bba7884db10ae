"""What W&B should have of a cell, read from the ledger alone: the ledger is the truth, W&B a copy.

The tracker sends it while the cell runs, a sync sends it later, and both come to the same run.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from capsweep.config.cell import Cell, flat
from capsweep.ledger.entry import Entry
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.storage.files import hash_bytes
from capsweep.tracking import tables
from capsweep.tracking.labels import Labels
from capsweep.tracking.tables import Table

Row = dict[str, Any]
Status = Literal["finished", "failed", "stopped", "running", "missing"]

PICTURES = (".png",)
SCORES, EXAMPLES = "predictions.npz", f"{EVALUATIONS}/{tables.WORST}.npz"


@dataclass(frozen=True)
class Content:
    """Everything that W&B should have of one cell.

    rows: one per epoch, in order. mode: "online", "offline", or "none" where W&B was not asked for.
    images: whether pictures are sent. pictures: names below evals/, with the sha256 of each.
    tables: names; see `tables_of`.
    """

    signature: str
    status: Status
    cause: str | None
    project: str | None
    entity: str | None
    mode: str
    labels: Labels
    config: Mapping[str, Any]
    rows: tuple[Row, ...]
    summary: Mapping[str, Any]
    images: bool
    pictures: Mapping[str, str]
    tables: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Equal for two contents if and only if W&B would show the same."""
        plain = {key: value for key, value in asdict(self).items() if key != "mode"}
        return hash_bytes(json.dumps(plain, sort_keys=True).encode())


def of(ledger: Ledger, signature: str) -> Content:
    """What W&B should have of a cell, as the ledger knows it now. Raises DamageError."""
    entry, provenance = ledger.entry(signature), ledger.provenance(signature)
    rows = tuple(ledger.rows(signature))
    logger = provenance.get("logistics", {}).get("logger", {})
    known = provenance.get("tracking") or _of_before(logger)
    return Content(
        signature=signature,
        status=_status(entry),
        cause=entry.cause,
        project=known.get("project"),
        entity=known.get("entity"),
        mode=known.get("mode") or "none",
        labels=Labels.from_plain(known),
        config=flat(ledger.science(signature) or {}) | known.get("columns", {}),
        rows=rows,
        summary=summary(entry.result) if entry.result else _last(rows),
        images=(images := known.get("images", True)),
        pictures=_pictures(ledger, signature) if images else {},
        tables=tables.names(*_files(ledger, signature)),
    )


def tables_of(ledger: Ledger, signature: str, images: bool) -> list[Table]:
    """The tables themselves, of a finished cell."""
    return list(tables.of(*_files(ledger, signature), images))


def _files(ledger: Ledger, signature: str) -> tuple[bytes | None, bytes | None]:
    return ledger.read(signature, SCORES), ledger.read(signature, EXAMPLES)


def section(cell: Cell, labels: Labels) -> dict[str, Any]:
    """The section `tracking` of a cell's provenance: what its W&B run is called, and where."""
    logger = cell.config["logger"]
    named = labels if labels.name else Labels.from_plain(labels.plain() | {"name": cell.signature})
    where = _of_before(logger)
    return where | named.plain() | {"columns": further_columns(cell)}


def further_columns(cell: Cell) -> dict[str, Any]:
    """Settings to sort and group by that are no science: what names the digits of pairs."""
    source = cell.config["dataset"].get("source")
    return {} if source is None else {"dataset.source": source}


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a finished run: of its last epoch and its test, and what they cost."""
    names = {key: key for key in ("images_per_second", "gpu_hours")} | {"parameters": "params"}
    return {
        **result["metrics"],
        **{name: result[key] for key, name in names.items() if key in result},
        **flat(result.get("first_activations", {}), "first_activations"),
    }


def _last(rows: tuple[Row, ...]) -> dict[str, Any]:
    return {key: value for key, value in rows[-1].items() if "/" in key} if rows else {}


def _of_before(logger: Mapping[str, Any]) -> dict[str, Any]:
    """Where the run is, as the logger's configuration has it."""
    if logger.get("name") != "wandb":
        return {"project": None, "entity": None, "mode": "none"}
    mode = "online" if logger.get("mode") == "online" else "offline"
    images = logger.get("images", True)  # as it was before there was a choice
    where = {"project": logger.get("project"), "entity": logger.get("entity")}
    return {**where, "mode": mode, "images": images}


def _status(entry: Entry) -> Status:
    return "finished" if entry.status in ("done", "stale") else entry.status


def _pictures(ledger: Ledger, signature: str) -> dict[str, str]:
    names = [name for name in ledger.evaluations(signature) if name.endswith(PICTURES)]
    contents = [ledger.read(signature, f"{EVALUATIONS}/{name}") for name in names]
    return {
        name: hash_bytes(content) for name, content in zip(names, contents, strict=True) if content
    }
