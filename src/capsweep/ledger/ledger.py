"""Read the states of cells, and the files in the folders of cells, from a ledger."""

from collections.abc import Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.errors import DamageError, UserError
from capsweep.ledger import causes, lease, stored_files
from capsweep.ledger.stored_files import CONFIG, DIGESTS, FAILURE, METRICS, POINTS, REMOVE, RESULT
from capsweep.storage.files import hash_bytes
from capsweep.storage.stores import Disk, Store, join, open_store

if TYPE_CHECKING:
    import numpy as np

# Scores [M, N] and labels [M] or [M, L], for M test examples, N classes and L classes per image.
Predictions: TypeAlias = "tuple[np.ndarray, np.ndarray]"

READERS = 32  # number of threads; an object store is slow, but serves requests in parallel
FEW = 8  # for more cells, all names of an object store are listed first, 1,000 per request
STOPPED = "stopped.json"  # says that a search ended the cell
POINT_LOSS = "train/loss_step"  # key of steps.jsonl: mean loss of the steps since the row before
EVALUATIONS = "evals"  # subfolder of a cell's folder for the files of evaluations


def folder_of(signature: str) -> str:
    """Return the path of a cell's folder, relative to the ledger."""
    return f"{signature[:2]}/{signature}"


@dataclass(frozen=True)
class Entry:
    """The state of a cell in the ledger."""

    status: causes.Status  # "missing" if the ledger has nothing about the cell
    result: dict[str, Any] | None = None  # the result of a cell that is done or stale
    cause: str | None = None  # why a failed cell failed, in one line
    owner: str | None = None  # the process that runs a running cell
    package: str | None = None  # hash of the code that ran a failed cell; None: unknown


class Ledger:
    """A ledger of finished and failed cells, in a folder or an object store.

    Cells are addressed by their signature.

    Args:
        root: The path of the folder, or the URL of the object store.

    Raises:
        ConfigError: If the path or URL cannot be used.
        StoreError: If the object store does not answer or refuses access. The methods can also
            raise this error.
    """

    def __init__(self, root: str | Path) -> None:
        self.store: Store = open_store(root)

    @cached_property
    def disk(self) -> Path | None:
        """The ledger's folder; None for an object store, which has no claims."""
        return self.store.path if isinstance(self.store, Disk) else None

    def read_entry(self, signature: str) -> Entry:
        """Read the state of a cell. A cell with a damaged result counts as failed.

        The code is not checked, so a stale cell counts as done. `judge` makes this check.
        """
        claimed = None if self.disk is None else lease.read_claim(self.disk, signature)
        return self._make_entry(signature, claimed)

    def read_entries(self, signatures: Iterable[str]) -> dict[str, Entry]:
        """Read the states of cells as `read_entry` does, and return the states keyed by signature.

        From an object store, the states are read in parallel.
        """
        names = list(dict.fromkeys(signatures))
        if self.disk is not None:
            claims = lease.read_claims(self.disk)
            return {name: self._make_entry(name, claims.get(name)) for name in names}
        listed = {path for path, _ in self.store.list_files("")} if len(names) > FEW else None
        with ThreadPoolExecutor(READERS) as pool:
            entries = pool.map(lambda name: self._make_entry(name, None, listed), names)
            return dict(zip(names, entries, strict=True))

    def read_cell_entries(self, cells: Iterable[Cell]) -> dict[str, Entry]:
        """Return the state of each cell, keyed by signature.

        A cell counts as failed if its result does not fit its configuration, and as stale if other
        code computed its result.
        """
        by_signature = {cell.signature: cell for cell in cells}
        entries = self.read_entries(by_signature).items()
        return {name: self.judge(name, entry, by_signature[name].config) for name, entry in entries}

    def judge(self, signature: str, entry: Entry, config: Mapping[str, Any]) -> Entry:
        """Check the result of a finished cell, and return the state of the cell after the check.

        If the number of epochs in the result does not fit the configuration, the cell counts as
        failed. Otherwise, if the code that decides the numbers has changed since the run or was not
        recorded, the cell is stale. In all other cases, `entry` is returned.

        Args:
            signature: The signature of the cell.
            entry: The state of the cell, as `read_entry` returned it.
            config: The configuration of the cell.
        """
        if entry.status != "done" or entry.result is None:
            return entry
        declared, epochs = config["epochs"], entry.result.get("epochs", config["epochs"])
        if epochs > declared or (epochs < declared and config.get("stop_accuracy") is None):
            where = join(self.store.root, f"{folder_of(signature)}/{RESULT}")
            why = f"it has {epochs} epochs, but its configuration says {declared}"
            return Entry("failed", cause=str(stored_files.damage_error(where, why, REMOVE)))
        code = entry.result.get("code", {}).get("numerics")
        is_current = code == code_identity.hash_numerics(config)
        return entry if is_current else Entry("stale", entry.result)

    def list_signatures(self, prefix: str = "") -> list[str]:
        """Return the sorted signatures of all cells that have a folder.

        Args:
            prefix: Only signatures that begin with this text are listed.
        """
        start, names = prefix[:2], self.store.list_names("")
        starts = [name for name in names if len(name) == 2 and name.startswith(start)]
        with ThreadPoolExecutor(READERS) as pool:
            folders = zip(starts, pool.map(self.store.list_names, starts), strict=True)
            found = [name for start, names in folders for name in names if name.startswith(start)]
        return [signature for signature in found if signature.startswith(prefix)]

    def read(self, signature: str, name: str) -> bytes | None:
        """Return the content of a file of a cell, or None if the file is absent.

        Args:
            signature: The signature of the cell.
            name: The path of the file in the cell's folder.

        Raises:
            DamageError: If the file was changed after the cell finished.
        """
        return self.read_located(signature, name)[0]

    def read_located(
        self, signature: str, name: str, result: Mapping[str, Any] | None = None
    ) -> tuple[bytes | None, str]:
        """Return the content of a file of a cell (None: absent), and the file's path or URL.

        Args:
            signature: The signature of the cell.
            name: The path of the file in the cell's folder.
            result: The result of the cell, if the caller has read it; None: this method reads it.

        Raises:
            DamageError: If the file was changed after the cell finished.
        """
        result = result or self.read_result(signature) or {}
        # `read_result` checks the digest of result.json. The file is not in an attempt's folder.
        is_result = name == RESULT
        folder = folder_of(signature) if is_result else self._find_folder(signature, result)
        known = None if is_result else result.get(DIGESTS, {}).get(name)
        path = f"{folder}/{name}"
        content, where = self.store.read(path), join(self.store.root, path)
        if content is not None and known not in (None, hash_bytes(content)):
            raise stored_files.damage_error(where, "it was altered: its digest is wrong", REMOVE)
        return content, where

    def write_evaluation(self, signature: str, name: str, content: bytes) -> str:
        """Write the file `evals/NAME` of a finished cell, and return the file's path or URL.

        Raises:
            UserError: If the cell is not finished.
        """
        result = self.read_result(signature)
        if result is None:
            raise UserError(f"cell {signature} has no result; run it, then evaluate it again")
        path = f"{self._find_folder(signature, result)}/{EVALUATIONS}/{name}"
        self.store.write(path, content)
        return join(self.store.root, path)

    def _find_folder(self, signature: str, result: Mapping[str, Any] | None = None) -> str:
        """Return the path of the folder with a cell's files, relative to the ledger.

        In an object store, this is the folder of the run (the attempt) that wrote the result.
        """
        if self.disk is not None:
            return folder_of(signature)
        result = (self.read_result(signature) or {}) if result is None else result
        return "/".join(filter(None, (folder_of(signature), result.get("attempt"))))

    def read_result(self, signature: str) -> dict[str, Any] | None:
        """Return the result of a finished cell, or None if the result is absent or damaged."""
        try:
            return self.read_result_or_raise(signature)
        except DamageError:
            return None

    def read_result_or_raise(self, signature: str) -> dict[str, Any] | None:
        """Return the result of a finished cell, or None if the result is absent.

        Raises:
            DamageError: If the result is damaged.
        """
        name = f"{folder_of(signature)}/{RESULT}"
        content, where = self.store.read(name), join(self.store.root, name)
        return None if content is None else stored_files.read_result(content, where, signature)

    def read_science(self, signature: str) -> dict[str, Any] | None:
        """Return the science configuration of a cell, or None if config.yaml is absent.

        Raises:
            DamageError: If config.yaml is damaged, or has the configuration of another cell.
        """
        content, where = self.read_located(signature, CONFIG)
        return None if content is None else stored_files.read_science(content, where, signature)

    def read_provenance(
        self, signature: str, result: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the provenance of a cell, or an empty dict if provenance.json is absent.

        Args:
            signature: The signature of the cell.
            result: The result of the cell, if the caller has read it; None: this method reads it.

        Raises:
            DamageError: If provenance.json is damaged, or belongs to another cell.
        """
        content, where = self.read_located(signature, "provenance.json", result)
        return {} if content is None else stored_files.read_provenance(content, where, signature)

    def read_rows(self, signature: str, name: str = METRICS) -> list[dict[str, Any]]:
        """Read metrics.jsonl or steps.jsonl of a cell, and return the rows in ascending order.

        The rows of metrics.jsonl are sorted by epoch, those of steps.jsonl by step. If several rows
        have the same epoch or step, only the last of these rows is returned. A killed process may
        leave an incomplete last line. This line is left out. If the file is absent, there are no
        rows.

        Args:
            signature: The signature of the cell.
            name: METRICS for metrics.jsonl, which has one row per epoch. POINTS for steps.jsonl,
                which has several rows per epoch.

        Raises:
            DamageError: If the file is damaged.
        """
        key = "step" if name == POINTS else "epoch"
        content, where = self.read_located(signature, name)
        rows = stored_files.read_rows(name, content or b"", where)
        by_place = {row[key]: row for row in rows}
        return [by_place[place] for place in sorted(by_place)]

    def list_files(self, signature: str, below: str = "") -> list[str]:
        """List the names of the files and folders of a cell, sorted.

        Args:
            signature: The signature of the cell.
            below: Subfolder of the cell's folder to list, such as `evals`; "" lists the cell's
                folder itself.
        """
        return self.store.list_names(f"{self._find_folder(signature)}/{below}".rstrip("/"))

    def locate_files(self, signature: str, result: Mapping[str, Any] | None = None) -> str:
        """Return the path or URL of the folder with the files of a cell.

        Args:
            signature: The signature of the cell.
            result: The result of the cell, if the caller has read it; None: this method reads it.
        """
        return join(self.store.root, self._find_folder(signature, result))

    def note_failure(self, signature: str, cause: str) -> None:
        """Write the cause of a failure to error.txt, if the cell has no error.txt yet."""
        name = f"{folder_of(signature)}/{FAILURE}"
        if self.store.read(name) is None:
            self.store.write(name, f"{cause}\n".encode())

    def _make_entry(
        self, signature: str, claimed: lease.Claim | None, listed: Set[str] | None = None
    ) -> Entry:
        """Build the state of a cell from its files.

        Args:
            signature: The signature of the cell.
            claimed: The newest claim on the cell; None: there is none.
            listed: The paths of all files of the ledger. Files with other paths are not requested,
                because they are absent. None: the paths are not known.
        """
        folder = folder_of(signature)

        def read(name: str) -> bytes | None:
            path = f"{folder}/{name}"
            return self.store.read(path) if listed is None or path in listed else None

        try:
            if (content := read(RESULT)) is not None:
                where = join(self.store.root, f"{folder}/{RESULT}")
                return Entry("done", stored_files.read_result(content, where, signature))
            if claimed is not None and not claimed.owner.is_dead:
                return Entry("running", owner=str(claimed.owner))
            if (error := read(FAILURE)) is not None:
                cause, _, _ = error.decode(errors="replace").partition("\n")
                return Entry("failed", cause=cause, package=self._read_package(signature))
            if read(STOPPED) is not None:
                return Entry("stopped")
        except DamageError as error:
            return Entry("failed", cause=str(error))
        return Entry("missing")

    def _read_package(self, signature: str) -> str | None:
        """Return the hash of the code that ran a failed cell, or None if the hash is unknown."""
        with suppress(DamageError):
            return self.read_provenance(signature).get("code", {}).get("package")


def fails_again(entry: Entry) -> bool:
    """Return whether a failed cell would fail again.

    A cell would fail again if the kind of its failure is one of DETERMINISTIC, and if the code has
    not changed since the failure. A cell that only has a damaged file would not fail again.
    """
    if entry.status != "failed" or entry.cause is None or is_damaged(entry):
        return False
    is_deterministic = causes.classify_cause(entry.cause) in causes.DETERMINISTIC
    return is_deterministic and entry.package == code_identity.hash_package()


def is_damaged(entry: Entry) -> bool:
    """Return whether a cell counts as failed because one of its files is damaged."""
    return entry.status == "failed" and "is damaged" in (entry.cause or "")


def load_predictions(ledger: Ledger, signature: str) -> Predictions:
    """Load the scores and labels of a finished cell's test examples.

    Returns:
        Scores [M, N] and labels [M] or [M, L], for M test examples, N classes and L classes per
        image.

    Raises:
        DamageError: If predictions.npz is absent or damaged.
    """
    name = stored_files.PREDICTIONS
    content, where = ledger.read_located(signature, name)
    if content is None:
        raise DamageError(f"cell {signature} has no {name}; {REMOVE}")
    return stored_files.read_predictions(content, where)
