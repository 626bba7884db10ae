"""What a cell's W&B run is called, and what it should have, read from the ledger alone: the ledger
is the truth, W&B a copy.

The tracker sends it while the cell runs, a sync sends it later, and both write the same run. A
mark, STORAGE/wandb/synced/SIGNATURE.json, says that W&B has all of a cell.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capsweep.config.cell import SCIENCE, Cell, flat, get
from capsweep.errors import DamageError
from capsweep.ledger import records, stored_files
from capsweep.ledger.ledger import EVALUATIONS, POINTS, Ledger
from capsweep.storage.files import hash_bytes, read_plain_file, write_json

Row = dict[str, Any]

SEPARATOR = " · "
LONGEST, LONGEST_TAG = 128, 64  # characters of a name and of a tag, at W&B
ITERATIONS, WEIGHT = "routing.num_iters", "loss.reconstruction.weight"
CODE = ("numerics", "commit", "dirty")


@dataclass(frozen=True)
class Labels:
    """How a run is found again: W&B's group, job type, name, notes and tags."""

    group: str = "train"
    job_type: str = "train"
    name: str = ""
    notes: str = ""
    tags: Sequence[str] = ()


UNTRACKED = {"project": None, "entity": None, "mode": "none"} | asdict(Labels())


def labels_of(cell: Cell) -> Labels:
    """Labels of a cell that is run by itself: its model is the arm, its overrides are its place."""
    model = cell.config["model"]["name"]
    named = ("model", "seed")  # in the name anyway
    place = [
        text
        for text in cell.overrides
        if (key := text.partition("=")[0]) not in named and key.partition(".")[0] in SCIENCE
    ]
    name = run_name(cell.config, model, place, signature=cell.signature)
    return Labels(job_type=model, name=name, tags=run_tags(cell.config))


def run_name(
    config: Mapping[str, Any],
    arm: str,
    place: Sequence[str] = (),
    weights: Collection[float] = (),
    signature: str = "",
) -> str:
    """The name of a cell's run: arm, routing iterations, reconstruction, further axes, seed.

    place: the cell's coordinates as overrides. weights: of the reconstruction loss in all cells
    that it is compared with; where they differ, the name has the weight. signature: ends a name
    that is too long.
    """
    axes = [text for text in place if text.partition("=")[0] not in (ITERATIONS, WEIGHT)]
    iterations = get(config, ITERATIONS)
    parts = [arm] if iterations is None else [arm, f"T={iterations}"]
    if config["routing"] is not None:  # without, there are no capsules to decode
        weight = reconstruction_weight(config)
        same = {weight, *weights} <= {weight, 0}
        parts.append("no recon" if weight == 0 else "recon" if same else f"recon {weight:g}")
    name = SEPARATOR.join([*parts, *axes, f"seed {config['seed']}"])
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - len(signature) - 2]}… {signature}"


def run_tags(config: Mapping[str, Any], *further: str) -> tuple[str, ...]:
    """Tags that find runs of several sweeps: data set, model, routing variant; `limited` where the
    data was cut.
    """
    routing = config["routing"]
    variant = [] if routing is None else [routing["name"]]
    limited = [] if config["limit_batches"] is None else ["limited"]
    tags = [*further, *limited, config["dataset"]["name"], config["model"]["name"], *variant]
    return tuple(dict.fromkeys(tag[:LONGEST_TAG] for tag in tags))


def reconstruction_weight(config: Mapping[str, Any]) -> float:
    """The weight of the reconstruction loss; 0 where nothing is reconstructed."""
    return get(config, WEIGHT) or 0.0


@dataclass(frozen=True)
class RunContent:
    """Everything that W&B should have of one cell."""

    signature: str
    status: str
    mode: str  # online, offline, or none for a cell without W&B
    run: Mapping[str, Any]  # see `run_arguments`
    rows: tuple[Row, ...]  # of epochs and of points inside them, see `merge_rows`
    summary: Mapping[str, Any]
    pictures: Mapping[str, str]  # names below evals/, with the sha256 of each

    @property
    def digest(self) -> str:
        """Equal for two contents if and only if W&B would show the same."""
        plain = {key: value for key, value in asdict(self).items() if key != "mode"}
        return hash_bytes(json.dumps(plain, sort_keys=True).encode())


def read_content(ledger: Ledger, signature: str) -> RunContent:
    """Return what W&B should have of a cell, as the ledger has it now. Raises DamageError."""
    entry, provenance = ledger.read_entry(signature), ledger.read_provenance(signature)
    rows = ledger.read_rows(signature)
    points = ledger.read_rows(signature, POINTS)
    last = {key: value for row in rows[-1:] for key, value in row.items() if "/" in key}
    return RunContent(
        signature=signature,
        status="finished" if entry.status in ("done", "stale") else entry.status,
        mode=provenance.get("tracking", UNTRACKED)["mode"],
        run=run_arguments(signature, provenance, ledger.read_science(signature) or {}),
        rows=tuple(merge_rows(rows, points)),
        summary=summarise_result(entry.result) if entry.result else last,
        pictures=_hash_pictures(ledger, signature),
    )


def merge_rows(rows: Sequence[Row], points: Sequence[Row]) -> list[Row]:
    """Rows of epochs and points inside them in the order of training; where both are at the same
    step, the point comes first.
    """
    return sorted([*points, *rows], key=lambda row: row["step"])


def describe_tracking(cell: Cell, labels: Labels) -> dict[str, Any]:
    """The section `tracking` of a cell's provenance: what its W&B run is called, and where."""
    named = labels if labels.name else replace(labels, name=cell.signature)
    source = cell.config["dataset"].get("source")  # no science, but runs are sorted by it
    columns = {} if source is None else {"dataset.source": source}
    logger, place = cell.config["logger"], {"project": None, "entity": None, "mode": "none"}
    if logger["name"] == "wandb":
        place = {key: logger[key] for key in ("project", "entity")}
        place |= {"mode": "online" if logger["mode"] == "online" else "offline"}
    return place | asdict(named) | {"columns": columns}


def summarise_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a finished run: of its last epoch and its test, and what they cost."""
    names = {key: key for key in ("images_per_second", "gpu_hours")} | {"parameters": "params"}
    return {
        **result["metrics"],
        **{name: result[key] for key, name in names.items() if key in result},
        **flat(result.get("first_activations", {}), "first_activations"),
    }


def run_arguments(
    signature: str, provenance: Mapping[str, Any], science: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by which W&B opens a cell's run: what it is called, its science, what repeats
    it, and which code trained it.
    """
    tracking = UNTRACKED | provenance.get("tracking", {})
    keys = ("project", "entity", "group", "job_type", "name", "notes", "tags")
    code = {f"code.{key}": provenance.get("code", {}).get(key) for key in CODE}
    origin = {"command": provenance.get("command")} | code
    config = flat(science) | tracking.get("columns", {})
    config |= {key: value for key, value in origin.items() if value is not None}
    return {"id": signature, "config": config} | {key: tracking[key] for key in keys}


def mark_file(storage: Path, signature: str) -> Path:
    """Where the mark of a cell stands."""
    return storage / "wandb" / "synced" / f"{signature}.json"


def write_mark(storage: Path, content: RunContent, server: str) -> None:
    """Note that W&B at `server` has exactly this content."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mark = {"digest": content.digest, "server": server, "synced": now}
    write_json(mark_file(storage, content.signature), mark)


def is_synced(storage: Path, content: RunContent, server: str) -> bool:
    """Return whether W&B at `server` has exactly this content. False for a damaged mark: a cell
    that is sent twice is still one run.
    """
    file = mark_file(storage, content.signature)
    try:
        mark = stored_files.parse_json(
            read_plain_file(file), str(file), "it is sent again", records.Mark
        )
    except (OSError, DamageError):
        return False
    return (mark["digest"], mark["server"]) == (content.digest, server)


def _hash_pictures(ledger: Ledger, signature: str) -> dict[str, str]:
    names = [name for name in ledger.list_evaluations(signature) if name.endswith(".png")]
    pictures = ((name, ledger.read(signature, f"{EVALUATIONS}/{name}")) for name in names)
    return {name: hash_bytes(png) for name, png in pictures if png}
