"""The name and the content of a cell's W&B run, read from the ledger.

The ledger is the original, and W&B gets a copy. A `Tracker` sends the content while the cell runs,
or `capsweep wandb sync` sends the content later. Both write the same run. The file
STORAGE/wandb/synced/SIGNATURE.json is called the mark of a cell. It says which content W&B has.

The configuration of a run also has columns that are not science: `row.SWEEP` is the place of the
cell in a sweep, without the seed, and `axis.KEY` is the value of an axis of the cell's arm. A
workspace groups runs by these columns. The provenance of a cell has only the columns of the sweep
that trained the cell. So each sweep also writes the columns of all its cells to the file
STORAGE/wandb/columns.json.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capsweep.config.cell import Cell, flatten, get
from capsweep.errors import DamageError
from capsweep.ledger import records, stored_files
from capsweep.ledger.ledger import EVALUATIONS, POINTS, Ledger
from capsweep.storage.files import hash_bytes, lock_file, read_plain_file, write_json

Row = dict[str, Any]

SEPARATOR = " · "
LONGEST, LONGEST_TAG = 128, 64  # characters that W&B allows in a name and in a tag
ITERATIONS, WEIGHT = "routing.num_iters", "loss.reconstruction.weight"
CODE = ("numerics", "commit", "dirty")
COLUMNS = "wandb/columns.json"  # file in the storage
CLASS_NAMES = "dataset.class_names"


@dataclass(frozen=True)
class Labels:
    """Labels by which people find a run at W&B. The names of the fields are W&B's names."""

    group: str = "train"  # name of the sweep
    job_type: str = "train"  # name of the arm
    name: str = ""  # name of the run; empty: the cell's signature is used
    notes: str = ""  # question that the sweep answers
    tags: Sequence[str] = ()  # for example data set, model and routing
    # Values of the run's configuration that are not science, such as the row of the cell.
    columns: Mapping[str, Any] = field(default_factory=dict)


UNTRACKED = {"project": None, "entity": None, "mode": "none"} | asdict(Labels())


def make_labels(cell: Cell) -> Labels:
    """Make the labels of a cell that `capsweep train` runs outside a sweep.

    The name of the model is used as the arm. The overrides of science settings, except `model` and
    `seed`, are used as the coordinates.
    """
    model = cell.config["model"]["name"]
    keys = {text: text.partition("=")[0] for text in cell.overrides}
    science = {text: key for text, key in keys.items() if key.partition(".")[0] in cell.science}
    place = [text for text, key in science.items() if key not in ("model", "seed")]
    name = format_run_name(cell.config, model, place, cell.signature)
    return Labels(job_type=model, name=name, tags=list_run_tags(cell.config))


def format_run_name(
    config: Mapping[str, Any], arm: str, place: Sequence[str], signature: str
) -> str:
    """Return the name of a run: arm, routing iterations, reconstruction, other axes, seed.

    Args:
        config: The configuration of the cell.
        arm: The name of the cell's arm.
        place: The coordinates of the cell, as overrides.
        signature: The signature of the cell. If the name has more than LONGEST characters, the end
            of the name is replaced with the signature.
    """
    axes = [text for text in place if text.partition("=")[0] not in (ITERATIONS, WEIGHT)]
    iterations = get(config, ITERATIONS)
    parts = [arm] if iterations is None else [arm, f"T={iterations}"]
    if config["routing"] is not None:  # without routing there are no capsules, so no reconstruction
        weight = get(config, WEIGHT)
        parts.append(f"recon {weight:g}" if weight else "no recon")
    name = SEPARATOR.join([*parts, *axes, f"seed {config['seed']}"])
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - len(signature) - 2]}… {signature}"


def list_run_tags(config: Mapping[str, Any], *further: str) -> tuple[str, ...]:
    """Return the tags of a run: its data set, model and routing variant.

    With these tags, users find runs of different sweeps. If `limit_batches` is set, the run also
    has the tag `limited`. The tags in `further` come first.
    """
    routing = config["routing"]
    variant = [] if routing is None else [routing["name"]]
    limited = [] if config["limit_batches"] is None else ["limited"]
    tags = [*further, *limited, config["dataset"]["name"], config["model"]["name"], *variant]
    return tuple(dict.fromkeys(tag[:LONGEST_TAG] for tag in tags))


@dataclass(frozen=True)
class RunContent:
    """Everything about one cell that W&B should have."""

    signature: str  # signature of the cell, and id of the run
    status: str  # finished, stopped, failed, running or missing
    mode: str  # online, offline, or none for a cell without W&B
    run: Mapping[str, Any]  # arguments with which W&B opens the run
    rows: tuple[Row, ...]  # rows of metrics.jsonl and steps.jsonl, in the order of training
    # For the run's summary at W&B: values of the result; without a result, the last metrics.
    summary: Mapping[str, Any]
    pictures: Mapping[str, str]  # SHA-256 of each picture, by its name in evals/

    @property
    def digest(self) -> str:
        """A hash of all fields except `mode`, because W&B does not show `mode`."""
        plain = {key: value for key, value in asdict(self).items() if key != "mode"}
        return hash_bytes(json.dumps(plain, sort_keys=True).encode())


def read_content(ledger: Ledger, signature: str, columns: Mapping[str, Any] = {}) -> RunContent:
    """Read the content of a cell from the ledger, as W&B should have it now.

    Args:
        ledger: The ledger that has the cell.
        signature: The signature of the cell.
        columns: Columns of the cell that are not in its provenance (`read_columns`).

    Raises:
        DamageError: If a file of the cell is damaged.
    """
    entry, provenance = ledger.read_entry(signature), ledger.read_provenance(signature)
    epochs = ledger.read_rows(signature)
    points = ledger.read_rows(signature, POINTS)
    last = {key: value for row in epochs[-1:] for key, value in row.items() if "/" in key}
    run = make_run_arguments(signature, provenance, ledger.read_science(signature) or {})
    return RunContent(
        signature=signature,
        status="finished" if entry.status in ("done", "stale") else entry.status,
        mode=provenance.get("tracking", UNTRACKED)["mode"],
        run=run | {"config": {**run["config"], **columns}},
        rows=tuple(merge_rows(epochs, points)),
        summary=summarise_result(entry.result) if entry.result else last,
        pictures=_hash_pictures(ledger, signature),
    )


def merge_rows(rows: Sequence[Row], points: Sequence[Row]) -> list[Row]:
    """Merge the rows of metrics.jsonl and of steps.jsonl in the order of training.

    If two rows have the same `step`, the row of steps.jsonl comes first.

    Args:
        rows: The rows of metrics.jsonl, one for each epoch.
        points: The rows of steps.jsonl, several for each epoch.
    """
    return sorted([*points, *rows], key=lambda row: row["step"])


def describe_tracking(cell: Cell, labels: Labels) -> dict[str, Any]:
    """Return the section `tracking` of a cell's provenance.

    The section has the project, the entity, the mode and the labels of the W&B run. Without W&B,
    the project is None and the mode is "none". Its columns also have the data source and the names
    of the classes, if any.
    """
    # Not part of science, but useful to sort runs and to name the classes of a confusion matrix.
    known = {key: get(cell.config, key) for key in ("dataset.source", CLASS_NAMES)}
    columns = {key: value for key, value in known.items() if value is not None}
    named = {"name": labels.name or cell.signature, "columns": {**columns, **labels.columns}}
    logger, place = cell.config["logger"], UNTRACKED
    if logger["name"] == "wandb":
        mode = "online" if logger["mode"] == "online" else "offline"
        place = {"project": logger["project"], "entity": logger["entity"], "mode": mode}
    return place | asdict(labels) | named


def summarise_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for W&B's summary of a finished run.

    The values are the metrics, the speed, the GPU hours, the number of parameters, and the
    quantiles of the activations in the first training step.
    """
    names = {key: key for key in ("images_per_second", "gpu_hours")} | {"parameters": "params"}
    return {
        **result["metrics"],
        **{name: result[key] for key, name in names.items() if key in result},
        **flatten(result.get("first_activations", {}), "first_activations"),
    }


def make_run_arguments(
    signature: str, provenance: Mapping[str, Any], science: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments with which W&B opens the run of a cell.

    The configuration of the run contains the science of the cell, the command that repeats the
    cell, and the commit and hash of the code that trained the cell.

    Args:
        signature: The signature of the cell.
        provenance: The provenance of the cell.
        science: The settings that decide the results of the cell.
    """
    tracking = UNTRACKED | provenance.get("tracking", {})
    keys = ("project", "entity", "group", "job_type", "name", "notes", "tags")
    origin = {f"code.{key}": provenance.get("code", {}).get(key) for key in CODE}
    origin["command"] = provenance.get("command")
    known = {key: value for key, value in origin.items() if value is not None}
    config = flatten(science) | tracking["columns"] | known
    return {"id": signature, "config": config} | {key: tracking[key] for key in keys}


def name_row(sweep: str) -> str:
    """Return the name of the column that has the places of cells in a sweep."""
    return f"row.{sweep}"


def name_axis(key: str) -> str:
    """Return the name of the column that has the values of an axis.

    The key of the axis would not do, because cells of arms without the axis have a value for it.
    """
    return f"axis.{key}"


def write_columns(storage: Path, labels: Mapping[str, Labels]) -> None:
    """Write the columns of a sweep's cells; columns of other sweeps and cells are kept.

    Args:
        storage: The storage.
        labels: The labels of each cell of the sweep, by signature.

    Raises:
        DamageError: If the file is damaged.
    """
    with lock_file(storage / COLUMNS):
        known = read_columns(storage)
        new = {cell: known.get(cell, {}) | {**each.columns} for cell, each in labels.items()}
        if known | new != known:
            write_json(storage / COLUMNS, known | new)


def read_columns(storage: Path) -> dict[str, dict[str, Any]]:
    """Read the columns of all cells, by signature.

    Raises:
        DamageError: If the file is damaged.
    """
    file, cure = storage / COLUMNS, "remove it; the next `make sweep` writes it again"
    if not file.exists():
        return {}
    return stored_files.parse_json(read_plain_file(file), str(file), cure, records.Columns)


def locate_mark(storage: Path, signature: str) -> Path:
    """Return the path of a cell's mark, the file that records what W&B has of the cell."""
    return storage / "wandb" / "synced" / f"{signature}.json"


def write_mark(storage: Path, content: RunContent, server: str) -> None:
    """Write a cell's mark, which says that the W&B server `server` has exactly this content."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mark = {"digest": content.digest, "server": server, "synced": now}
    write_json(locate_mark(storage, content.signature), mark)


def is_synced(storage: Path, content: RunContent, server: str) -> bool:
    """Return whether the mark of a cell says that the server has exactly this content.

    The result is False if the mark is absent or damaged. The cell is then sent again, into the same
    run.
    """
    file = locate_mark(storage, content.signature)
    with suppress(OSError, DamageError):
        text = read_plain_file(file)
        mark = stored_files.parse_json(text, str(file), "it is sent again", records.Mark)
        return (mark["digest"], mark["server"]) == (content.digest, server)
    return False


def _hash_pictures(ledger: Ledger, signature: str) -> dict[str, str]:
    names = [name for name in ledger.list_files(signature, EVALUATIONS) if name.endswith(".png")]
    pictures = ((name, ledger.read(signature, f"{EVALUATIONS}/{name}")) for name in names)
    return {name: hash_bytes(png) for name, png in pictures if png}
