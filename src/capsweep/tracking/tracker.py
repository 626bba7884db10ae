"""Weights & Biases, as a second copy of metrics that the ledger has first.

Whatever W&B does, training goes on: a fault is said once and ends the tracking of this cell.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capsweep.config.cell import Cell, flat
from capsweep.tracking import content
from capsweep.tracking.labels import Labels

FLUSH_SECONDS = 1.0  # W&B's own 15 s would lose a killed run whole
INIT_SECONDS = 5.0


class Tracker:
    """One W&B run; or nothing, with logger=csv. Every call returns, whatever W&B does."""

    def __init__(self, open_run: Callable[[], Any] | None) -> None:
        self.fault: str | None = None
        self._run = None
        if open_run is not None:
            self._run = self._guard(open_run)

    def log(self, row: Mapping[str, Any]) -> None:
        """One epoch."""
        self._guard(lambda: self._run and self._run.log(dict(row)))

    def summarise(self, values: Mapping[str, Any]) -> None:
        """The numbers of the finished run."""
        self._guard(lambda: self._run and self._run.summary.update(dict(values)))

    def close(self, exit_code: int) -> None:
        """End the run, once; without this an offline run of a reused worker is lost."""
        run, self._run = self._run, None
        if run is not None:
            self._guard(lambda: run.finish(exit_code=exit_code))

    def _guard(self, call: Callable[[], Any]) -> Any:
        if self.fault is not None:
            return None
        try:
            return call()
        except Exception as error:  # W&B's own faults have no common class
            self.fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print(f"W&B: {self.fault}; this cell goes on without it", file=sys.stderr, flush=True)
            return None


def tracker(cell: Cell, storage: Path, labels: Labels) -> Tracker:
    """The tracker of a cell: one W&B run whose id is the signature."""
    logger = cell.config["logger"]
    if logger["name"] != "wandb":
        return Tracker(None)
    return Tracker(lambda: _open(cell, storage, labels, offline=logger["mode"] != "online"))


def columns(cell: Cell) -> dict[str, Any]:
    """The settings by which runs are sorted and grouped: science, and what names its digits."""
    return flat(cell.science) | content.further_columns(cell)


def _open(cell: Cell, storage: Path, labels: Labels, offline: bool) -> Any:
    import wandb

    run = wandb.init(
        project=cell.config["logger"]["project"],
        entity=cell.config["logger"]["entity"],
        dir=str(storage),
        id=cell.signature,
        name=labels.name or cell.signature,
        group=labels.group,
        job_type=labels.job_type,
        notes=labels.notes,
        config=columns(cell),
        resume="allow",
        mode="offline" if offline else "online",
        settings=wandb.Settings(
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            init_timeout=INIT_SECONDS,
            silent=True,
            console="off",
        ),
    )
    # A resumed run starts its own step count at 0 again; the epoch is what rows share.
    run.define_metric("epoch")
    run.define_metric("*", step_metric="epoch")
    return run
