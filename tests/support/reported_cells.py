"""Cells as training leaves them in a ledger, with numbers that a test chooses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import table
from capsweep.report.table import ResultTable
from capsweep.storage.files import hash_bytes
from capsweep.sweep import expand, spec
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

SWEEP = """\
question: Is one arm better than the other?
base: [experiment=digits]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small]}
  capsnet: {fixed: [model=capsnet_small], space: {routing.num_iters: [1, 3]}}
table: {rows: [arm, routing.num_iters], columns: [dataset], metric: test/error}
published: {source: nowhere, values: [{arm: cnn, dataset: mnist, value: 0.5}]}
"""
PROVENANCE = {
    "command": "capsweep train experiment=digits",
    "overrides": ["experiment=digits"],
    "started": "2026-01-02T03:04:05+00:00",
    "code": {"commit": "c0ffee", "dirty": False, "numerics": "n1", "package": "p1"},
    "versions": {"torch": "2.13.0"},
    "hardware": {"processor": "A processor", "cores": 2, "memory_bytes": 2**34, "gpus": []},
    "fingerprint": "f1f2f3",
    "logistics": {"logger": {"name": "wandb", "project": "p", "entity": None, "mode": "offline"}},
}


def small_sweep(folder: Path, text: str = SWEEP) -> tuple[Sweep, list[Point]]:
    """Three rows of two seeds."""
    path = folder / "small.yaml"
    path.write_text(text)
    sweep = spec.load(str(path))
    return sweep, expand.expand_sweep(sweep)


def build_table(folder: Path, text: str = SWEEP) -> ResultTable:
    """The table of the small sweep, with the ledger in the same folder."""
    return table.build_table(*small_sweep(folder, text), Ledger(folder))


def rows(losses: Sequence[float], split: str = "val", **others: float) -> list[dict[str, Any]]:
    """A row per epoch; its error is a tenth of its loss, its learning rate halves."""
    return [
        {
            "epoch": epoch,
            "step": 10 * (epoch + 1),
            f"{split}/loss": loss,
            f"{split}/error": loss / 10,
            "lr": 0.5**epoch,
            "seconds": 2.0,
            **others,
        }
        for epoch, loss in enumerate(losses)
    ]


def finish(
    ledger: Path,
    point: Point,
    error: float,
    epochs: Sequence[Mapping[str, Any]] | None = None,
    provenance: Mapping[str, Any] = PROVENANCE,
    **result: Any,
) -> Path:
    """Write a finished cell; its folder. 100 training images an epoch, 50 a second."""
    epochs = rows([0.4, 0.2, 0.1]) if epochs is None else epochs
    folder = ledger / folder_of(point.cell.signature)
    folder.mkdir(parents=True)
    routing = point.cell.config["routing"] or {"num_iters": 0}
    found = {
        "status": "finished",
        "metrics": {"test/error": error, "test/loss": 2 * error},
        "epochs": point.cell.config["epochs"],
        "parameters": 1000 * (1 + routing["num_iters"]),
        "seconds": {"fit": 2.0 * len(epochs), "total": 2.0 * len(epochs) + 1},
        "images_per_second": 50.0,
        "peak_memory_bytes": {"process": 2**29, "gpu": None},
        "hardware": "A processor",
        **result,
    }
    (folder / "result.json").write_text(json.dumps(stored_files.with_digests(found, {})))
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(point.cell.science)))
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in epochs))
    return folder


def evaluate(folder: Path, stem: str, caption: str) -> None:
    """A picture in the evals/ of a cell's folder, its numbers beside it."""
    (folder / "evals").mkdir(exist_ok=True)
    pixels = np.arange(48 * 64).astype(np.uint8).reshape(48, 64)
    Image.fromarray(pixels).save(folder / "evals" / f"{stem}.png")
    np.savez(folder / "evals" / f"{stem}.npz", caption=np.array(caption))


def sign(folder: Path) -> None:
    """Digests as a cell has them that finished today."""
    result = json.loads((folder / "result.json").read_text())
    files = [path for path in folder.iterdir() if path.name != "result.json" and path.is_file()]
    digests = {path.name: hash_bytes(path.read_bytes()) for path in files}
    whole = stored_files.with_digests({**result, "signature": folder.name}, digests)
    (folder / "result.json").write_text(json.dumps(whole))
