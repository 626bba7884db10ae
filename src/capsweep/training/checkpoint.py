"""resume.ckpt: the full state of a run that is cut short, written and checked.

It is torch's file, and after it the SHA-256 of that, so that one rename writes both.
"""

import hashlib
import io
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.lightning import Checkpoint, LightningModule, Trainer
from capsweep.training.callbacks import EpochRecorder

DIGITS = 64  # of the digest, at the end of the file; torch reads a file with them as without
ANEW = "begun_anew"  # key of what says that, in provenance and result
CIRCUMSTANCES = ("code", "versions", "hardware", "implementations")


class ResumeCheckpoint(Checkpoint):
    """Keeps the newest full state for a run that is cut short, at most every `interval` seconds.

    All devices take part, when the first finds that it is due; that one alone writes. When a hook
    or SIGTERM ends the run early, the state of that epoch is kept and training ends: `has_left`.
    After the last epoch a cell is rather tested.
    """

    def __init__(self, directory: CellDirectory, interval: float, recorder: EpochRecorder) -> None:
        self.interval, self.recorder = interval, recorder
        self.path = directory.resume_checkpoint
        self.last = time.monotonic()
        self.has_left = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._handle_sigterm()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._handle_sigterm()

    def _handle_sigterm(self) -> None:
        # After Lightning has put its own handler there, which would end the cell in mid-epoch, or
        # in its test, when the last checkpoint may be old.
        if self.recorder.hooks.stop_flag is not None:
            self.recorder.hooks.stop_flag.install_handler()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ends_early = self.recorder.ends_early or self.recorder.hooks.is_stopping
        leaves = ends_early and trainer.current_epoch + 1 < (trainer.max_epochs or 0)
        is_due = leaves or time.monotonic() - self.last >= self.interval
        is_due, self.has_left = trainer.strategy.broadcast((is_due, leaves))
        trainer.should_stop = trainer.should_stop or self.has_left
        if not is_due:
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            trainer.save_checkpoint(temporary)
            if not trainer.is_global_zero:
                return
            seal(temporary)
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)  # a full disk needs the room
        self.recorder.hooks.on_checkpoint()
        self.last = time.monotonic()


def seal(path: Path) -> None:
    """Append the digest of a file to it, and flush the file to the disk."""
    with path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(digest.encode())
        file.flush()
        os.fsync(file.fileno())


def check_resumable(directory: CellDirectory, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What the checkpoint of a cell adds to its provenance.

    `earlier`: other versions and hardware, and other code with the same numerics, that trained
    epochs of it. A checkpoint that cannot be used is removed, with a line: `begun_anew`.
    """
    path = directory.resume_checkpoint
    if not path.exists():
        return {}
    stored, fault = _read_provenance(path, provenance["code"]["numerics"])
    if fault is not None:
        path.unlink()
        line = f"{path} is dropped, and the cell begins anew: {fault}"
        print(line, file=sys.stderr, flush=True)
        return {ANEW: line}
    today, last = (
        {name: made.get(name) for name in CIRCUMSTANCES} for made in (provenance, stored)
    )
    earlier = [*stored.get("earlier", []), last]
    return {"earlier": [made for made in earlier if made != today]}


def _read_provenance(path: Path, code: str) -> tuple[dict[str, Any], str | None]:
    """The provenance that the recorder put into a checkpoint; or why the checkpoint is useless."""
    content = memoryview(path.read_bytes())
    if hashlib.sha256(content[:-DIGITS]).hexdigest().encode() != content[-DIGITS:]:
        return {}, "it is damaged, or older than digests of checkpoints"
    try:
        stored = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        (made,) = (s["provenance"] for s in stored["callbacks"].values() if "rows" in s)
        is_ours = made["code"]["numerics"] == code
    except Exception as error:  # a digest can be right of what never was a checkpoint
        kind = causes.kind_of_cause(causes.describe_cause(error))
        if kind in (CauseKind.OUT_OF_MEMORY, CauseKind.STORAGE):
            raise  # of this moment: the checkpoint is kept
        return {}, f"it is no checkpoint of a cell ({type(error).__name__})"
    return made, None if is_ours else "other code than today's trained its epochs"
