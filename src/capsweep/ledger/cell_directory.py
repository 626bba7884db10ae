"""Write the folder of a cell. A cell is finished if and only if its folder has result.json."""

import json
import secrets
import shutil
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import yaml

from capsweep.config.cell import Cell
from capsweep.config.package_files import CHANGES
from capsweep.ledger import causes, stored_files
from capsweep.ledger.ledger import STOPPED, Ledger, folder_of
from capsweep.ledger.records import Provenance
from capsweep.ledger.stored_files import AGAIN, DIGESTS, FAILURE, METRICS, POINTS, RESULT, RESUME
from capsweep.storage.files import hash_file, remove_path, write_atomically, write_json, write_text
from capsweep.storage.scratch import make_scratch_prefix
from capsweep.storage.stores import Bucket

EARLIER = (RESULT, FAILURE, STOPPED, CHANGES)  # files of an earlier run that a new run removes


class CellDirectory:
    """The folder of a cell, with methods that write its files.

    Files are written atomically. Only metrics.jsonl and steps.jsonl can also grow line by line.

    This class itself is used if the ledger is on a disk and the cell has no result yet. The cell is
    then written directly into its final folder in the ledger, so that the checkpoint of a killed
    run stays there.

    Args:
        path: The path of the folder.

    Attributes:
        resume_checkpoint: The path of the checkpoint with the full training state. The file is
            absent before the first checkpoint. A finished cell may keep the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.resume_checkpoint = path, path / RESUME

    def start(self, cell: Cell, provenance: Mapping[str, Any], changes: str = "") -> None:
        """Write config.yaml, provenance.json and, if there are changes, changes.diff.

        The files that say how an earlier run ended (result.json, error.txt and stopped.json), and
        its changes.diff, are removed first.

        Args:
            cell: The cell.
            provenance: The content of provenance.json.
            changes: The uncommitted changes of the checkout (`package_files.read_checkout`).
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in EARLIER:
            remove_path(self.path / stale)
        if changes:
            write_text(self.path / CHANGES, changes)
        write_text(self.path / "config.yaml", yaml.safe_dump(cell.science, sort_keys=True))
        write_json(self.path / "provenance.json", provenance)

    def update_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Replace the provenance that `start` wrote."""
        write_json(self.path / "provenance.json", provenance)
        self._show_files("provenance.json")

    def read_provenance(self) -> dict[str, Any]:
        """Read the provenance of the cell; return an empty dict if provenance.json is absent.

        Raises:
            DamageError: If provenance.json is damaged.
        """
        path = self.path / "provenance.json"
        if not path.exists():
            return {}
        return stored_files.parse_json(path.read_bytes(), str(path), AGAIN, Provenance)

    def write_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write all rows of metrics.jsonl or steps.jsonl, and replace the earlier file.

        Args:
            name: The name of the file.
            rows: The rows. Each becomes one line.
        """
        write_text(self.path / name, "".join(json.dumps(row) + "\n" for row in rows))

    def append_row(self, name: str, row: Mapping[str, Any]) -> None:
        """Append a row to metrics.jsonl or steps.jsonl."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        """Write a file of the cell atomically, for example predictions.npz.

        Args:
            name: The path of the file, relative to the folder of the cell.
            write: Writes the content to an open file.
        """
        write_atomically(self.path / name, write)

    def store_checkpoint(self) -> None:
        """Do nothing: on a disk, training writes the checkpoint directly into the ledger.

        Only `StagedDirectory` must copy the checkpoint, because its ledger is an object store.
        """

    def finish(self, result: Mapping[str, Any], largest: float = 0) -> dict[str, Any]:
        """Write result.json, and remove a large checkpoint; the cell is then finished.

        Args:
            result: The result without digests.
            largest: The largest size in bytes of a checkpoint that is kept.

        Returns:
            The stored result, with the digests of the cell's files.
        """
        finished = self._with_digests(result, largest)
        write_json(self.path / RESULT, finished)
        if RESUME not in finished[DIGESTS]:
            self.resume_checkpoint.unlink(missing_ok=True)
        return finished

    def _with_digests(self, result: Mapping[str, Any], largest: float) -> dict[str, Any]:
        """Return a result with added digests of the cell's files, except of a large checkpoint.

        Files in evals/ have no digest, because later evaluations may replace these files.
        """
        names = {path.name for path in self.path.iterdir() if path.is_file()} - {RESULT}
        if RESUME in names and self.resume_checkpoint.stat().st_size > largest:
            names.remove(RESUME)
        final = sorted(name for name in names if name[0] != ".")
        return stored_files.with_digests(result, {n: hash_file(self.path / n) for n in final})

    def close(self) -> None:
        """Keep the folder: if this run is unfinished, the next run resumes from its checkpoint."""

    def write_failure(self, error: BaseException) -> None:
        """Write error.txt: the cause of the failure in the first line, then the traceback."""
        trace = "".join(traceback.format_exception(error))
        write_text(self.path / FAILURE, f"{causes.describe_cause(error)}\n\n{trace}")
        self._show_files(FAILURE, METRICS, POINTS)

    def _show_files(self, *names: str) -> None:
        """Do nothing: on a disk, the files of an unfinished run are in the ledger already.

        Only `StagedDirectory` must copy the named files.
        """


class RepeatedDirectory(CellDirectory):
    """The folder for another run of a finished cell, in a ledger on a disk.

    The new folder is next to the cell's final folder, which contains the earlier result. The
    earlier result stays valid until the new run is finished. Then the earlier folder is moved into
    `superseded/`, and the new folder becomes the final folder.

    Args:
        ledger: The ledger's folder.
        signature: The signature of the cell.

    Attributes:
        final_path: The cell's final folder in the ledger.
        superseded_path: The path to which the folder of the earlier run is moved.
    """

    def __init__(self, ledger: Path, signature: str) -> None:
        self.final_path = ledger / folder_of(signature)
        self.superseded_path = ledger / "superseded" / signature / secrets.token_hex(4)
        super().__init__(self.final_path.with_name(f".{signature}.again"))

    def finish(self, result: Mapping[str, Any], largest: float = 0) -> dict[str, Any]:
        """Finish the new run, and replace the folder of the earlier run by the new folder.

        The earlier folder is renamed to `superseded_path`, then the new folder is renamed to
        `final_path`. If the process is killed in between, `recover_cell` does the second rename.
        """
        finished = super().finish(result, largest)
        self.superseded_path.parent.mkdir(parents=True, exist_ok=True)
        self.final_path.rename(self.superseded_path)
        self.path.rename(self.final_path)
        return finished


class StagedDirectory(CellDirectory):
    """The local folder of a cell, if the ledger is an object store.

    Only complete files are copied to the store. When a run finishes, its files are copied into a
    separate folder for this run, so that the files of two finished runs do not mix. Before that,
    files of an unfinished run are copied into the cell's folder. If two runs finish a cell that had
    no result, the first result is valid. A run that repeats a finished cell replaces the result.

    Args:
        ledger: The ledger.
        signature: The signature of the cell.
        scratch: The folder for scratch files on this node.
        replaces: Whether this run repeats a finished cell and replaces the earlier result.

    Attributes:
        folder: The cell's folder in the store.
        attempt: The name of this run's folder, which is inside `folder`.
    """

    def __init__(self, ledger: Ledger, signature: str, scratch: Path, replaces: bool) -> None:
        assert isinstance(ledger.store, Bucket)
        self.ledger, self.store, self.signature = ledger, ledger.store, signature
        self.folder, self.replaces = folder_of(signature), replaces
        self.attempt = secrets.token_hex(8)
        super().__init__(scratch / f"{make_scratch_prefix(signature)}{self.attempt}")

    def start(self, cell: Cell, provenance: Mapping[str, Any], changes: str = "") -> None:
        """Write the first files, as on a disk, and fetch the checkpoint if the store has one."""
        super().start(cell, provenance, changes)
        for stale in (FAILURE, STOPPED, CHANGES):
            self.store.remove(f"{self.folder}/{stale}")
        with suppress(FileNotFoundError):
            name = f"{self.folder}/{RESUME}"
            write_atomically(self.resume_checkpoint, lambda file: self.store.copy_to(name, file))
        self._show_files("config.yaml", "provenance.json", CHANGES)

    def _show_files(self, *names: str) -> None:
        """Copy files of this unfinished run to the store, if the cell has no earlier result."""
        for name in names:
            if not self.replaces and (self.path / name).exists():
                self.store.copy_from(f"{self.folder}/{name}", self.path / name)

    def store_checkpoint(self) -> None:
        """Copy the checkpoint to the store."""
        self.store.copy_from(f"{self.folder}/{RESUME}", self.resume_checkpoint)

    def finish(self, result: Mapping[str, Any], largest: float = 0) -> dict[str, Any]:
        """Copy the files of the cell to the store, and return the valid result.

        The file result.json is written last. If the cell had no result when this run started, and
        another run has finished the cell in the meantime, nothing is copied, and the result of the
        other run is valid.
        """
        first = None if self.replaces else self.ledger.read_result(self.signature)
        if first is None:
            result = self._with_digests(result, largest)
            for path in sorted(self.path.rglob("*")):
                if path.is_file() and (path.name != RESUME or RESUME in result[DIGESTS]):
                    name = path.relative_to(self.path).as_posix()
                    self.store.copy_from(f"{self.folder}/{self.attempt}/{name}", path)
            content = json.dumps({**result, "attempt": self.attempt}, allow_nan=False)
            self.store.write(f"{self.folder}/{RESULT}", content.encode())
        self.store.remove(f"{self.folder}/{RESUME}")
        return dict(result) if first is None else first

    def close(self) -> None:
        """Remove the local folder; the next run takes the checkpoint from the store."""
        shutil.rmtree(self.path, ignore_errors=True)


def open_directory(ledger: Ledger, signature: str, scratch: Path) -> CellDirectory:
    """Return the folder for a run of a cell.

    If the cell has a result, that result stays valid until the new run finishes.

    Args:
        ledger: The ledger.
        signature: The signature of the cell.
        scratch: The folder for scratch files on this node. It is used only if the ledger is an
            object store.
    """
    replaces = ledger.read_result(signature) is not None
    if ledger.disk is None:
        return StagedDirectory(ledger, signature, scratch, replaces)
    if not replaces:
        return CellDirectory(ledger.disk / folder_of(signature))
    return RepeatedDirectory(ledger.disk, signature)


def recover_cell(ledger: Ledger, signature: str) -> None:
    """Complete `RepeatedDirectory.finish` if its process was killed between the two renames.

    The folder of the finished new run is renamed to the cell's final folder. If there is nothing to
    complete, nothing is done.
    """
    if ledger.disk is not None:
        cell = RepeatedDirectory(ledger.disk, signature)
        if not cell.final_path.exists() and (cell.path / RESULT).exists():
            cell.path.rename(cell.final_path)
