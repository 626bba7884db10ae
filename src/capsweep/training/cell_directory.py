"""The folder of one cell in the ledger. A cell is finished if and only if result.json is there."""

import csv
import io
import json
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from capsweep.config.cell import Cell
from capsweep.files import write_atomically, write_json, write_text


class CellDirectory:
    """Writes what DESIGN calls a cell on disk; every file is whole or absent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def resume_checkpoint(self) -> Path:
        """Full training state; exists only while the cell is unfinished."""
        return self.path / "resume.ckpt"

    def result(self) -> dict[str, Any] | None:
        """The result, if the cell is finished; a damaged one is none, and the cell is run again."""
        try:
            return json.loads((self.path / "result.json").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def start(self, cell: Cell, provenance: Mapping[str, Any]) -> None:
        """Say what is about to run; a result or failure of an earlier run no longer counts."""
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in ("result.json", "error.txt"):
            (self.path / stale).unlink(missing_ok=True)
        write_text(self.path / "config.yaml", yaml.safe_dump(cell.science, sort_keys=True))
        write_json(self.path / "provenance.json", provenance)

    def write_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """metrics.jsonl anew, one line per epoch."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(self.path / "metrics.jsonl", lines)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One more epoch."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def write_metrics_csv(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """metrics.csv: the same rows for a spreadsheet."""
        text = io.StringIO()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path / "metrics.csv", text.getvalue())

    def write_predictions(self, scores_MN: Tensor, labels_M: Tensor) -> None:
        """predictions.npz: test outputs (class lengths or logits) and labels."""
        scores, labels = scores_MN.float().numpy(), labels_M.numpy()
        write_atomically(
            self.path / "predictions.npz",
            lambda file: np.savez_compressed(file, scores=scores, labels=labels),
        )

    def write_weights(self, network: nn.Module) -> None:
        """weights.ckpt: the state dict, loadable with `weights_only=True`."""
        write_atomically(
            self.path / "weights.ckpt", lambda file: torch.save(network.state_dict(), file)
        )

    def finish(self, result: Mapping[str, Any]) -> None:
        """The last write: from here on the cell is finished."""
        write_json(self.path / "result.json", result)
        self.resume_checkpoint.unlink(missing_ok=True)

    def fail(self, error: BaseException) -> None:
        """error.txt: the cause in the first line, then the traceback."""
        trace = "".join(traceback.format_exception(error))
        write_text(self.path / "error.txt", f"{cause_of(error)}\n\n{trace}")


def cause_of(error: BaseException) -> str:
    """One line: the kind of error and what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
