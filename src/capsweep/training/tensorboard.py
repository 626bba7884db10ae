"""The copy of a cell for TensorBoard, written by Lightning's own logger."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsweep.config.cell import Cell, flatten
from capsweep.runtime import terminal
from capsweep.runtime.lightning import TensorBoardLogger
from capsweep.tracking.tracker import Tracker
from capsweep.training import Row


class TensorBoardTracker(Tracker):
    """A writer of STORAGE/tensorboard/SWEEP/NAME: the metrics and the science of a cell.

    A fault is printed once and ends the tracking of the cell, as with W&B. The curves of an earlier
    attempt are removed, because a resumed cell logs all its rows again.

    Args:
        cell: The cell.
        storage: The storage.
        provenance: The provenance of the cell. Its section `tracking` names the sweep and the run.
    """

    def __init__(self, cell: Cell, storage: Path, provenance: Mapping[str, Any]) -> None:
        super().__init__(cell, storage, provenance)
        run, self._science, self._step = provenance["tracking"], flatten(cell.science), 0
        # Commands with other words may give the same name to another cell.
        name = f"{run['name']} · {cell.signature[:8]}".replace("/", "_")
        self._board: TensorBoardLogger | None = None
        with self._guard_training():
            self._board = TensorBoardLogger(storage / "tensorboard", run["group"], name)
            shutil.rmtree(self._board.log_dir, ignore_errors=True)

    def log(self, row: Mapping[str, Any]) -> None:
        """Write the values of a row at the row's step."""
        if self._board is not None:
            with self._guard_training():
                self._step = row["step"]
                self._board.log_metrics(row, self._step)

    def close(self, exit_code: int = 1, summary: Row | None = None, folder: Any = None) -> None:
        """Write the science with the metrics of the test, and close the file."""
        board, self._board = self._board, None
        if board is not None:
            tested = {k: v for k, v in (summary or {}).items() if k.startswith("test/")}
            with self._guard_training():
                board.log_hyperparams(self._science, tested, self._step)
                board.finalize("success" if exit_code == 0 else "failed")

    def _end_tracking(self, fault: str) -> None:
        self._board, self.fault = None, fault
        terminal.print_once(f"TensorBoard: {fault}")
