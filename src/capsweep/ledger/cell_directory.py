"""The folder in which a cell is made. A cell is finished if and only if result.json is there."""

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
from capsweep.ledger import causes, stored_files
from capsweep.ledger.ledger import STOPPED, Ledger, folder_of
from capsweep.ledger.records import Provenance
from capsweep.ledger.stored_files import AGAIN, FAILURE, METRICS, POINTS, RESULT
from capsweep.storage.files import (
    hash_file,
    remove_path,
    write_atomically,
    write_json,
    write_text,
)
from capsweep.storage.scratch import make_scratch_prefix
from capsweep.storage.stores import Bucket

RESUME = "resume.ckpt"


class CellDirectory:
    """Writes the files of a cell; each is whole or absent.

    On a disk the cell is made where it will stay, so that a killed run leaves its checkpoint there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def resume_checkpoint(self) -> Path:
        """Full training state; exists only while the cell is unfinished."""
        return self.path / RESUME

    def start(self, cell: Cell, provenance: Mapping[str, Any]) -> None:
        """Say what is about to run; the failure of an earlier run no longer counts."""
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in (RESULT, FAILURE, STOPPED):
            remove_path(self.path / stale)
        write_text(self.path / "config.yaml", yaml.safe_dump(cell.science, sort_keys=True))
        write_json(self.path / "provenance.json", provenance)

    def update_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Say more than `start` did of what is about to run."""
        write_json(self.path / "provenance.json", provenance)

    def read_provenance(self) -> dict[str, Any]:
        """Return what was said of it; empty before `start`."""
        path = self.path / "provenance.json"
        if not path.exists():
            return {}
        return stored_files.parse_json(path.read_bytes(), str(path), AGAIN, Provenance)

    def write_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """metrics.jsonl or steps.jsonl anew, one line per row."""
        write_text(self.path / name, "".join(json.dumps(row) + "\n" for row in rows))

    def append_row(self, name: str, row: Mapping[str, Any]) -> None:
        """One more line of such a file."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        """A file of the cell: predictions.npz, weights.ckpt."""
        write_atomically(self.path / name, write)

    def store_checkpoint(self) -> None:
        """The checkpoint was renewed."""

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The last write: from here on the cell is finished. The result that stands."""
        finished = self._with_digests(result)
        write_json(self.path / RESULT, finished)
        self.resume_checkpoint.unlink(missing_ok=True)
        return finished

    def _with_digests(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """What is below evals/ may be made anew later, and has none."""
        names = (path.name for path in self.path.iterdir() if path.is_file())
        final = sorted(name for name in names if name not in (RESULT, RESUME) and name[0] != ".")
        return stored_files.with_digests(result, {n: hash_file(self.path / n) for n in final})

    def close(self) -> None:
        """The run ended, however it did: a checkpoint stays for the next one."""

    def write_failure(self, error: BaseException) -> None:
        """error.txt: the cause in the first line, then the traceback."""
        trace = "".join(traceback.format_exception(error))
        write_text(self.path / FAILURE, f"{causes.describe_cause(error)}\n\n{trace}")


class RepeatedDirectory(CellDirectory):
    """A finished cell made again: beside the old one, which stands until the new one is finished.

    The old one is kept below `superseded/`.
    """

    def __init__(self, ledger: Path, signature: str) -> None:
        self.place = ledger / folder_of(signature)
        self.kept = ledger / "superseded" / signature / secrets.token_hex(4)
        super().__init__(self.place.with_name(f".{signature}.again"))

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """See CellDirectory. Between the two renames the new cell waits, complete, to be found."""
        finished = super().finish(result)
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        self.place.rename(self.kept)
        self.path.rename(self.place)
        return finished


class StagedDirectory(CellDirectory):
    """A cell of an object store, made in a local folder: only whole files are ever seen there.

    Two runs of one cell do not mix, since each has a folder of its own there; the first result
    stands.
    """

    def __init__(self, ledger: Ledger, signature: str, scratch: Path, replaces: bool) -> None:
        assert isinstance(ledger.store, Bucket)
        self.ledger, self.store, self.signature = ledger, ledger.store, signature
        self.folder, self.replaces = folder_of(signature), replaces
        self.attempt = secrets.token_hex(8)
        super().__init__(scratch / f"{make_scratch_prefix(signature)}{self.attempt}")

    def start(self, cell: Cell, provenance: Mapping[str, Any]) -> None:
        """See CellDirectory."""
        super().start(cell, provenance)
        self.store.remove(f"{self.folder}/{FAILURE}")
        self.store.remove(f"{self.folder}/{STOPPED}")
        with suppress(FileNotFoundError):
            name = f"{self.folder}/{RESUME}"
            write_atomically(self.resume_checkpoint, lambda file: self.store.copy_to(name, file))
        self._show_files("config.yaml", "provenance.json")

    def _show_files(self, *names: str) -> None:
        """Copy files of the unfinished cell, unless a result stands that is to be replaced."""
        for name in names:
            if not self.replaces and (self.path / name).exists():
                self.store.copy_from(f"{self.folder}/{name}", self.path / name)

    def update_provenance(self, provenance: Mapping[str, Any]) -> None:
        """See CellDirectory."""
        super().update_provenance(provenance)
        self._show_files("provenance.json")

    def store_checkpoint(self) -> None:
        """See CellDirectory."""
        self.store.copy_from(f"{self.folder}/{RESUME}", self.resume_checkpoint)

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """See CellDirectory."""
        first = None if self.replaces else self.ledger.read_result(self.signature)
        if first is None:
            result = self._with_digests(result)
            for path in sorted(self.path.rglob("*")):
                if path.is_file() and path.name != RESUME:
                    name = path.relative_to(self.path).as_posix()
                    self.store.copy_from(f"{self.folder}/{self.attempt}/{name}", path)
            content = json.dumps({**result, "attempt": self.attempt}, allow_nan=False)
            self.store.write(f"{self.folder}/{RESULT}", content.encode())
        self.store.remove(f"{self.folder}/{RESUME}")
        return dict(result) if first is None else first

    def write_failure(self, error: BaseException) -> None:
        """See CellDirectory."""
        super().write_failure(error)
        self._show_files(FAILURE, METRICS, POINTS)

    def close(self) -> None:
        """See CellDirectory. The checkpoint is in the store, where alone the next run looks."""
        shutil.rmtree(self.path, ignore_errors=True)


def open_directory(ledger: Ledger, signature: str, scratch: Path) -> CellDirectory:
    """Where a cell is to be made; a result that is there stands until another is finished."""
    replaces = ledger.read_result(signature) is not None
    if ledger.disk is None:
        return StagedDirectory(ledger, signature, scratch, replaces)
    if not replaces:
        return CellDirectory(ledger.disk / folder_of(signature))
    return RepeatedDirectory(ledger.disk, signature)


def recover_cell(ledger: Ledger, signature: str) -> None:
    """Put a cell in its place that was finished anew when its process was killed."""
    if ledger.disk is not None:
        cell = RepeatedDirectory(ledger.disk, signature)
        if not cell.place.exists() and (cell.path / RESULT).exists():
            cell.path.rename(cell.place)
