"""What W&B should have of a cell, read from the ledger alone: the ledger is the truth, W&B a copy.

The tracker sends it while the cell runs, a sync sends it later, and both write the same run. A
mark, STORAGE/wandb/synced/SIGNATURE.json, says that W&B has all of a cell.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from capsweep.config.cell import Cell, flat
from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.storage.files import hash_bytes, write_json
from capsweep.tracking import tables
from capsweep.tracking.labels import Labels

Row = dict[str, Any]
Status = Literal["finished", "failed", "stopped", "running", "missing"]

PICTURES = (".png",)
SCORES, EXAMPLES = "predictions.npz", f"{EVALUATIONS}/{tables.WORST}.npz"


@dataclass(frozen=True)
class Content:
    """Everything that W&B should have of one cell.

    rows: one per epoch, in order. mode: "online", "offline", or "none" for a cell without W&B.
    images: whether pictures are sent. pictures: names below evals/, with the sha256 of each.
    tables: their names; see `tables`.
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


def read_content(ledger: Ledger, signature: str) -> Content:
    """What W&B should have of a cell, as the ledger has it now. Raises DamageError."""
    entry, provenance = ledger.entry(signature), ledger.read_provenance(signature)
    rows = tuple(ledger.read_rows(signature))
    logger = provenance.get("logistics", {}).get("logger", {})
    known = provenance.get("tracking") or _run_place(logger)
    return Content(
        signature=signature,
        status="finished" if entry.status in ("done", "stale") else entry.status,
        cause=entry.cause,
        project=known.get("project"),
        entity=known.get("entity"),
        mode=known.get("mode") or "none",
        labels=Labels.from_plain(known),
        config=flat(ledger.read_science(signature) or {}) | known.get("columns", {}),
        rows=rows,
        summary=summarise(entry.result) if entry.result else _last_metrics(rows),
        images=(images := known.get("images", True)),
        pictures=_picture_hashes(ledger, signature) if images else {},
        tables=tables.table_names(*_table_files(ledger, signature)),
    )


def picture_key(name: str) -> str:
    """What a picture of evals/ is called in W&B."""
    return f"pictures/{Path(name).stem}"


def describe_tracking(cell: Cell, labels: Labels) -> dict[str, Any]:
    """The section `tracking` of a cell's provenance: what its W&B run is called, and where."""
    named = labels if labels.name else replace(labels, name=cell.signature)
    source = cell.config["dataset"].get("source")  # no science, but runs are sorted by it
    columns = {} if source is None else {"dataset.source": source}
    return _run_place(cell.config["logger"]) | named.plain() | {"columns": columns}


def summarise(result: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a finished run: of its last epoch and its test, and what they cost."""
    names = {key: key for key in ("images_per_second", "gpu_hours")} | {"parameters": "params"}
    return {
        **result["metrics"],
        **{name: result[key] for key, name in names.items() if key in result},
        **flat(result.get("first_activations", {}), "first_activations"),
    }


def run_of_cell(cell: Cell, labels: Labels) -> dict[str, Any]:
    """The arguments by which W&B opens the run of a cell that is about to be trained."""
    known = describe_tracking(cell, labels)
    return run_arguments(cell.signature, known, flat(cell.science) | known["columns"])


def run_arguments(
    signature: str, known: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by which W&B opens a cell's run. known: its place and labels."""
    keys = ("project", "entity", "group", "job_type", "notes", "tags")
    # W&B would make up a name for cells from before labels were kept.
    named = {"id": signature, "name": known["name"] or signature, "config": dict(config)}
    return named | {key: known[key] for key in keys}


def mark_file(storage: Path, signature: str) -> Path:
    """Where the mark of a cell stands."""
    return storage / "wandb" / "synced" / f"{signature}.json"


def write_mark(storage: Path, content: Content, server: str) -> None:
    """Note that W&B at `server` has exactly this content, so that W&B's own `wandb sync` skips the
    cell's offline runs too: it does where RUN.wandb.synced stands beside RUN.wandb.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mark = {"digest": content.digest, "server": server, "synced": now}
    write_json(mark_file(storage, content.signature), mark)
    run = f"run-{content.signature}.wandb"
    for file in (storage / "wandb").glob(f"offline-run-*/{run}"):
        file.with_suffix(".wandb.synced").touch()


def is_synced(storage: Path, content: Content, server: str) -> bool:
    """Whether W&B at `server` has exactly this content. False for a damaged mark: a cell that is
    sent twice is still one run."""
    file = mark_file(storage, content.signature)
    try:
        mark = stored_files.parse_json(
            file.read_bytes(), str(file), "it is sent again", stored_files.MARK
        )
    except (OSError, DamageError):
        return False
    return (mark["digest"], mark["server"]) == (content.digest, server)


def _table_files(ledger: Ledger, signature: str) -> tuple[bytes | None, bytes | None]:
    return ledger.read(signature, SCORES), ledger.read(signature, EXAMPLES)


def _last_metrics(rows: tuple[Row, ...]) -> dict[str, Any]:
    return {key: value for key, value in rows[-1].items() if "/" in key} if rows else {}


def _run_place(logger: Mapping[str, Any]) -> dict[str, Any]:
    """Where the run is, as the logger's configuration has it."""
    if logger.get("name") != "wandb":
        return {"project": None, "entity": None, "mode": "none"}
    mode = "online" if logger.get("mode") == "online" else "offline"
    images = logger.get("images", True)  # cells from before there was a choice have pictures
    place = {"project": logger.get("project"), "entity": logger.get("entity")}
    return {**place, "mode": mode, "images": images}


def _picture_hashes(ledger: Ledger, signature: str) -> dict[str, str]:
    names = [name for name in ledger.list_evaluations(signature) if name.endswith(PICTURES)]
    pictures = [ledger.read(signature, f"{EVALUATIONS}/{name}") for name in names]
    return {name: hash_bytes(png) for name, png in zip(names, pictures, strict=True) if png}
