"""What W&B should have of a cell, read from the ledger alone: the ledger is the truth, W&B a copy.

The tracker sends it while the cell runs, a sync sends it later, and both write the same run. A
mark, STORAGE/wandb/synced/SIGNATURE.json, says that W&B has all of a cell.
Shape letters: M test examples, N classes, L classes shown in one image, K worst, C H W image.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from capsweep.config.cell import Cell, flat
from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.storage.files import hash_bytes, write_json
from capsweep.tracking.labels import Labels

Row = dict[str, Any]
Status = Literal["finished", "failed", "stopped", "running", "missing"]
ReadFile: TypeAlias = Callable[[str], bytes | None]  # a file of a cell, by its name

PICTURES = (".png",)
CONFUSION, WORST = "confusion", "worst-examples"  # tables
CONFUSION_COLUMNS = ("Actual", "Predicted", "nPredictions")  # as W&B's own chart names them
SCORES, EXAMPLES = "predictions.npz", f"{EVALUATIONS}/{WORST}.npz"


@dataclass(frozen=True)
class RunContent:
    """Everything that W&B should have of one cell.

    mode: "online", "offline", or "none" for a cell without W&B. run: see `run_arguments`. rows: one
    per epoch, in order. images: whether pictures are sent. pictures: names below evals/, with the
    sha256 of each.
    """

    signature: str
    status: Status
    cause: str | None
    mode: str
    run: Mapping[str, Any]
    rows: tuple[Row, ...]
    summary: Mapping[str, Any]
    images: bool
    pictures: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Equal for two contents if and only if W&B would show the same."""
        plain = {key: value for key, value in asdict(self).items() if key != "mode"}
        return hash_bytes(json.dumps(plain, sort_keys=True).encode())


def read_content(ledger: Ledger, signature: str) -> RunContent:
    """What W&B should have of a cell, as the ledger has it now. Raises DamageError."""
    entry, provenance = ledger.entry(signature), ledger.read_provenance(signature)
    rows = tuple(ledger.read_rows(signature))
    logger = provenance.get("logistics", {}).get("logger", {})
    known = provenance.get("tracking") or _run_place(logger)
    place = {"project": None, "entity": None, **known} | Labels.from_plain(known).to_plain()
    config = flat(ledger.read_science(signature) or {}) | known.get("columns", {})
    last = {key: value for row in rows[-1:] for key, value in row.items() if "/" in key}
    images = known.get("images", True)  # cells from before there was a choice have pictures
    return RunContent(
        signature=signature,
        status="finished" if entry.status in ("done", "stale") else entry.status,
        cause=entry.cause,
        mode=known.get("mode") or "none",
        run=run_arguments(signature, place, config),
        rows=rows,
        summary=summarise_result(entry.result) if entry.result else last,
        images=images,
        pictures=_hash_pictures(ledger, signature) if images else {},
    )


def describe_tracking(cell: Cell, labels: Labels) -> dict[str, Any]:
    """The section `tracking` of a cell's provenance: what its W&B run is called, and where."""
    named = labels if labels.name else replace(labels, name=cell.signature)
    source = cell.config["dataset"].get("source")  # no science, but runs are sorted by it
    columns = {} if source is None else {"dataset.source": source}
    return _run_place(cell.config["logger"]) | named.to_plain() | {"columns": columns}


def summarise_result(result: Mapping[str, Any]) -> dict[str, Any]:
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


def write_mark(storage: Path, content: RunContent, server: str) -> None:
    """Note that W&B at `server` has exactly this content, so that W&B's own `wandb sync` skips the
    cell's offline runs too: it does where RUN.wandb.synced stands beside RUN.wandb.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mark = {"digest": content.digest, "server": server, "synced": now}
    write_json(mark_file(storage, content.signature), mark)
    run = f"run-{content.signature}.wandb"
    for file in (storage / "wandb").glob(f"offline-run-*/{run}"):
        file.with_suffix(".wandb.synced").touch()


def is_synced(storage: Path, content: RunContent, server: str) -> bool:
    """Whether W&B at `server` has exactly this content. False for a damaged mark: a cell that is
    sent twice is still one run."""
    file = mark_file(storage, content.signature)
    try:
        mark = stored_files.parse_json(
            file.read_bytes(), str(file), "it is sent again", "digest", "server"
        )
    except (OSError, DamageError):
        return False
    return (mark["digest"], mark["server"]) == (content.digest, server)


def _run_place(logger: Mapping[str, Any]) -> dict[str, Any]:
    """Where the run is, as the logger's configuration has it."""
    if logger.get("name") != "wandb":
        return {"project": None, "entity": None, "mode": "none"}
    place = {key: logger.get(key) for key in ("project", "entity")}
    mode = "online" if logger.get("mode") == "online" else "offline"
    return place | {"mode": mode, "images": logger.get("images", True)}


def _hash_pictures(ledger: Ledger, signature: str) -> dict[str, str]:
    names = [name for name in ledger.list_evaluations(signature) if name.endswith(PICTURES)]
    pictures = ((name, ledger.read(signature, f"{EVALUATIONS}/{name}")) for name in names)
    return {name: hash_bytes(png) for name, png in pictures if png}


def picture_key(name: str) -> str:
    """What a picture of evals/ is called in W&B."""
    return f"pictures/{Path(name).stem}"


@dataclass(frozen=True)
class Table:
    """Rows of plain values; a picture is uint8 [C, H, W]."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def digest(self) -> str:
        """Equal for two tables if and only if they show the same."""
        cells = [value for row in self.rows for value in row]
        pictures = [value for value in cells if isinstance(value, np.ndarray)]
        plain = [[*value.shape] if isinstance(value, np.ndarray) else value for value in cells]
        text = json.dumps([self.name, self.columns, plain])
        return hash_bytes(text.encode() + b"".join(value.tobytes() for value in pictures))


def make_tables(read: ReadFile, images: bool = True) -> Iterator[Table]:
    """The tables of a cell's files.

    images: with the pictures of the worst examples. Images that show several classes have no
    confusion matrix: a prediction does not say which of the shown classes it stands for.
    """
    if (predictions := read(SCORES)) is not None:
        scores_MN, labels = stored_files.read_predictions(predictions, SCORES)
        if labels.ndim == 1:
            yield confusion_table(scores_MN, labels)
    if (examples := read(EXAMPLES)) is not None:
        yield worst_table(stored_files.read_arrays(examples, EXAMPLES, stored_files.REMOVE), images)


def confusion_table(scores_MN: np.ndarray, labels_M: np.ndarray) -> Table:
    """How often examples of each class were taken for each."""
    classes = scores_MN.shape[1]
    places = labels_M.astype(np.int64) * classes + scores_MN.argmax(axis=1)
    counts = np.bincount(places, minlength=classes**2).reshape(classes, classes)
    rows = [(str(i), str(j), int(counts[i, j])) for i in range(classes) for j in range(classes)]
    return Table(CONFUSION, CONFUSION_COLUMNS, tuple(rows))


def worst_table(file: dict[str, np.ndarray], images: bool) -> Table:
    """The examples with the surest wrong class; see `training.fit`."""
    scores_KN = file["scores"]
    names = tuple(f"score {number}" for number in range(scores_KN.shape[1]))
    columns = ("index", "label", "prediction", "margin", *names, *(("picture",) if images else ()))
    rows = []
    for k, scores_N in enumerate(scores_KN):
        label, prediction = (join_classes(file[key][k]) for key in ("labels", "predictions"))
        row = (int(file["indices"][k]), label, prediction, float(file["margins"][k]))
        pictures = (file["images"][k],) if images else ()
        rows.append((*row, *map(float, scores_N), *pictures))
    return Table(WORST, columns, tuple(rows))


def join_classes(classes_L: np.ndarray) -> str:
    """The classes of one image, in words."""
    return " ".join(map(str, sorted(classes_L.tolist())))
