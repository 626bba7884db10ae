"""Cells of a ledger that were tracked with W&B, written in milliseconds instead of trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from capsweep.config.cell import hash_science
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import folder_of
from capsweep.storage.files import write_json, write_text

PROJECT = "capsules"


def signature_of(number: int) -> str:
    """That of the configuration that `write` writes."""
    return hash_science({"seed": number, "routing": {"num_iters": 3}})


def find_folder(storage: Path, number: int) -> Path:
    """Where a cell is."""
    return storage / "ledger" / folder_of(signature_of(number))


def write(storage: Path, number: int, epochs: int = 3, points: bool = False, **changes: Any) -> str:
    """A finished cell, whose rows, logger or labels `changes` may replace; its signature."""
    place = find_folder(storage, number)
    logger = {"name": "wandb", "project": PROJECT, "entity": None, "mode": "offline"}
    labels = {"group": "ablation", "job_type": "capsnet", "notes": "Does it?", "tags": ["ablation"]}
    name = f"capsnet · T=3 · seed {number}"
    tracking = {**logger, **labels, "name": name, "columns": {}}
    provenance = {"logistics": {"logger": logger}, "tracking": tracking | changes}
    write_text(place / "config.yaml", f"seed: {number}\nrouting: {{num_iters: 3}}\n")
    write_json(place / "provenance.json", provenance)
    write_rows(place, epochs, points)
    finish_cell(place, epochs)
    return signature_of(number)


def write_rows(place: Path, epochs: int, points: bool = False) -> None:
    """metrics.jsonl with so many epochs of ten steps; with points, steps.jsonl of two an epoch."""
    rows = [{"epoch": e, "step": 10 * e + 10, "train/loss": 1 / (e + 1)} for e in range(epochs)]
    steps = range(5, 10 * epochs + 1, 5)
    inside = [{"step": s, "epoch": s / 10, "train/loss_step": 1 / s} for s in steps]
    for name, lines in (("metrics.jsonl", rows), ("steps.jsonl", inside if points else [])):
        write_text(place / name, "".join(json.dumps(row) + "\n" for row in lines))


def finish_cell(place: Path, epochs: int) -> None:
    """result.json: from here on the cell is finished."""
    metrics = {"train/loss": 1 / epochs, "test/error": 0.25}
    result = {"metrics": metrics, "parameters": 1000, "images_per_second": 10.0}
    whole = stored_files.with_digests({"status": "finished", **result}, {})
    write_json(place / "result.json", whole)
    (place / "error.txt").unlink(missing_ok=True)


def write_predictions(place: Path, mistakes: int) -> None:
    """predictions.npz of 10 examples of 2 classes, of which a table is made."""
    labels = np.arange(10) % 2
    taken_for = np.where(np.arange(10) < mistakes, 1 - labels, labels)
    np.savez(place / "predictions.npz", scores=np.eye(2)[taken_for], labels=labels)


def fail_cell(place: Path, cause: str) -> None:
    """The cell failed after the epochs that it has."""
    (place / "result.json").unlink()
    write_text(place / "error.txt", f"{cause}\n")


def draw_picture(place: Path, name: str, shade: int) -> None:
    """A picture of evals/, as `capsweep eval` leaves it."""
    (place / "evals").mkdir(exist_ok=True)
    Image.new("L", (8, 8), shade).save(place / "evals" / name)
