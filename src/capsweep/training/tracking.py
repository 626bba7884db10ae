"""Weights & Biases, as a second copy of metrics that the ledger has first.

Whatever W&B does, training goes on: a fault is said once and ends the tracking of this cell.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.config.cell import Cell, flat

FLUSH_SECONDS = 1.0  # W&B's own 15 s would lose a killed run whole
INIT_SECONDS = 5.0


@dataclass(frozen=True)
class Labels:
    """How a run is found again: W&B's group, job type, name and notes."""

    group: str = "train"
    job_type: str = "train"
    name: str = ""
    notes: str = ""


class Tracker:
    """One W&B run; or nothing, with logger=csv. Every call returns, whatever W&B does."""

    def __init__(self, open_logger: Callable[[], Any] | None) -> None:
        self.fault: str | None = None
        self._logger = None
        if open_logger is not None:
            self._logger = self._guard(open_logger)

    def log(self, row: Mapping[str, Any]) -> None:
        """One epoch."""
        self._guard(lambda: self._logger and self._logger.log_metrics(dict(row)))

    def summarise(self, values: Mapping[str, Any]) -> None:
        """The numbers of the finished run."""
        self._guard(lambda: self._logger and self._logger.experiment.summary.update(dict(values)))

    def close(self, exit_code: int) -> None:
        """End the run, once; without this an offline run of a reused worker is lost."""
        logger, self._logger = self._logger, None
        if logger is not None:
            self._guard(lambda: logger.experiment.finish(exit_code=exit_code))

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
    source = cell.config["dataset"].get("source")
    return flat(cell.science) | ({} if source is None else {"dataset.source": source})


def _open(cell: Cell, storage: Path, labels: Labels, offline: bool) -> Any:
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    logger = WandbLogger(
        project=cell.config["logger"]["project"],
        entity=cell.config["logger"]["entity"],
        save_dir=str(storage),
        id=cell.signature,
        name=labels.name or cell.signature,
        group=labels.group,
        job_type=labels.job_type,
        notes=labels.notes,
        config=columns(cell),
        resume="allow",
        offline=offline,
        log_model=False,
        settings=wandb.Settings(
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            init_timeout=INIT_SECONDS,
            silent=True,
            console="off",
        ),
    )
    # A resumed run starts its own step count at 0 again; the epoch is what rows share.
    logger.experiment.define_metric("epoch")
    logger.experiment.define_metric("*", step_metric="epoch")
    return logger
