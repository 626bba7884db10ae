"""The ledger, read: what is known of a cell, of many cells, and what is in their folders."""

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
from capsweep.ledger.causes import Status
from capsweep.ledger.lease import Claim
from capsweep.ledger.stored_files import (
    CONFIG,
    DIGESTS,
    FAILURE,
    METRICS,
    POINTS,
    PREDICTIONS,
    REMOVE,
    RESULT,
    ROWS,
)
from capsweep.storage.files import hash_bytes
from capsweep.storage.stores import Disk, Store, join, open_store

if TYPE_CHECKING:
    import numpy as np

# Scores [M, N] and labels, [M] or [M, L]: M test examples, N classes, L classes of one image.
Predictions: TypeAlias = "tuple[np.ndarray, np.ndarray]"

READERS = 32  # an object store answers slowly, but many at once
FEW = 8  # cells; for more, an object store is listed as a whole, 1,000 names a request
STOPPED = "stopped.json"  # a search ended the cell
POINT_LOSS = "train/loss_step"  # of a point: the mean of the steps since the last one
EVALUATIONS = "evals"  # the folder of a cell for what was asked of it later


def folder_of(signature: str) -> str:
    """Where a cell's results are, below the ledger."""
    return f"{signature[:2]}/{signature}"


@dataclass(frozen=True)
class Entry:
    """One cell's state: its result when done or stale, the cause in one line when failed.

    `owner` says which process runs it; `package` which code made a failure.
    """

    status: Status
    result: dict[str, Any] | None = None
    cause: str | None = None
    owner: str | None = None
    package: str | None = None


class Ledger:
    """Finished and failed cells, content-addressed by signature, at a path or a URL."""

    def __init__(self, root: str | Path) -> None:
        self.store: Store = open_store(root)

    @cached_property
    def disk(self) -> Path | None:
        """The ledger's folder where it is on a POSIX file system, which alone has claims."""
        return self.store.path if isinstance(self.store, Disk) else None

    def read_entry(self, signature: str) -> Entry:
        """What is known of a cell. A damaged result counts as failed, and says so."""
        claimed = None if self.disk is None else lease.read_claim(self.disk, signature)
        return self._make_entry(signature, claimed)

    def read_entries(self, signatures: Iterable[str]) -> dict[str, Entry]:
        """What is known of many cells."""
        names = list(dict.fromkeys(signatures))
        if self.disk is not None:
            claims = self.read_claims()
            return {name: self._make_entry(name, claims.get(name)) for name in names}
        listed = {path for path, _ in self.store.list_files("")} if len(names) > FEW else None
        with ThreadPoolExecutor(READERS) as pool:
            entries = pool.map(lambda name: self._make_entry(name, None, listed), names)
            return dict(zip(names, entries, strict=True))

    def read_cell_entries(self, cells: Iterable[Cell]) -> dict[str, Entry]:
        """As `entries`, and results that other code made are marked stale."""
        by_signature = {cell.signature: cell for cell in cells}
        entries = self.read_entries(by_signature).items()
        return {name: self.judge(name, entry, by_signature[name].config) for name, entry in entries}

    def judge(self, signature: str, entry: Entry, config: Mapping[str, Any]) -> Entry:
        """Return the entry of a cell with this configuration: as failed where its result cannot be
        of it, as stale when other code than today's made it, or code that nobody recorded.
        """
        if entry.status != "done" or entry.result is None:
            return entry
        asked, epochs = config["epochs"], entry.result.get("epochs", config["epochs"])
        if epochs > asked or (epochs < asked and config.get("stop_accuracy") is None):
            where = join(self.store.root, f"{folder_of(signature)}/{RESULT}")
            why = f"epochs: {epochs} of a cell of {asked}"
            return Entry("failed", cause=str(stored_files.damage_error(where, why, REMOVE)))
        code = entry.result.get("code", {}).get("numerics")
        is_current = code == code_identity.hash_numerics(config)
        return entry if is_current else Entry("stale", entry.result)

    def read_claims(self) -> dict[str, Claim]:
        """The newest claim of every claimed cell, dead or alive."""
        return {} if self.disk is None else lease.read_claims(self.disk)

    def list_signatures(self, prefix: str = "") -> list[str]:
        """Every cell that has a folder and begins so, sorted."""
        start, names = prefix[:2], self.store.list_names("")
        starts = [name for name in names if len(name) == 2 and name.startswith(start)]
        return [
            signature
            for start in starts
            for signature in self.store.list_names(start)
            if signature.startswith(start) and signature.startswith(prefix)
        ]

    def read(
        self, signature: str, name: str, result: Mapping[str, Any] | None = None
    ) -> bytes | None:
        """A file of a cell; None when it is absent. result: of the cell, where it was read already.

        Raises DamageError for one that is not as it was when the cell was finished.
        """
        return self._read_located(signature, name, result)[0]

    def _read_located(
        self, signature: str, name: str, result: Mapping[str, Any] | None
    ) -> tuple[bytes | None, str]:
        """Return a file of a cell, as `read` does, and its path."""
        result = result or self.read_result(signature) or {}
        # A result stands above its attempt; its digest of itself was compared when it was read.
        is_result = name == RESULT
        folder = folder_of(signature) if is_result else self._made_in(signature, result)
        known = None if is_result else result.get(DIGESTS, {}).get(name)
        path = f"{folder}/{name}"
        content, where = self.store.read(path), join(self.store.root, path)
        if content is not None and known not in (None, hash_bytes(content)):
            raise stored_files.damage_error(where, "it was altered: another digest", REMOVE)
        return content, where

    def write_evaluation(self, signature: str, name: str, content: bytes) -> str:
        """Write `evals/NAME` beside the result that was evaluated; where it is.

        Raises UserError for a cell that is not finished.
        """
        result = self.read_result(signature)
        if result is None:
            raise UserError(f"{signature}: it has no result any more; evaluate it again")
        path = f"{self._made_in(signature, result)}/{EVALUATIONS}/{name}"
        self.store.write(path, content)
        return join(self.store.root, path)

    def _made_in(self, signature: str, result: Mapping[str, Any] | None = None) -> str:
        """Return the folder of the files of a cell: in an object store, that of its attempt.

        result: of the cell, where it was read already.
        """
        if self.disk is not None:
            return folder_of(signature)
        result = (self.read_result(signature) or {}) if result is None else result
        return "/".join(filter(None, (folder_of(signature), result.get("attempt"))))

    def read_result(self, signature: str) -> dict[str, Any] | None:
        """The result of a finished cell; a damaged one is none."""
        try:
            return self.read_result_or_raise(signature)
        except DamageError:
            return None

    def read_result_or_raise(self, signature: str) -> dict[str, Any] | None:
        """Return the result of a finished cell. Raises DamageError."""
        name = f"{folder_of(signature)}/{RESULT}"
        content, where = self.store.read(name), join(self.store.root, name)
        return None if content is None else stored_files.read_result(content, where, signature)

    def read_science(
        self, signature: str, result: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the science configuration that a cell was started with. Raises DamageError, also
        for the configuration of another cell. result: as in `read`.
        """
        content, where = self._read_located(signature, CONFIG, result)
        return None if content is None else stored_files.read_science(content, where, signature)

    def read_provenance(
        self, signature: str, result: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return where a cell's numbers come from; empty when nothing was written. Raises
        DamageError.
        """
        content, where = self._read_located(signature, "provenance.json", result)
        return {} if content is None else stored_files.read_provenance(content, where, signature)

    def read_rows(self, signature: str, name: str = METRICS) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl, one per epoch in order, or of steps.jsonl, one per
        step; the last of an epoch or a step counts.

        A torn line, of a process that was killed while it wrote, is left out. Raises DamageError.
        """
        key = "step" if name == POINTS else "epoch"
        content, where = self._read_located(signature, name, None)
        rows = stored_files.read_rows(content or b"", where, ROWS[name])
        by_place = {row[key]: row for row in rows}
        return [by_place[place] for place in sorted(by_place)]

    def list_files(self, signature: str, below: str = "") -> list[str]:
        """Names of the files of a cell, or of those in its folder `below`, sorted; see `read`."""
        return self.store.list_names(f"{self._made_in(signature)}/{below}".rstrip("/"))

    def list_evaluations(self, signature: str) -> list[str]:
        """Names of the files in `evals/`, sorted; see `read`."""
        return self.list_files(signature, EVALUATIONS)

    def locate_files(self, signature: str, result: Mapping[str, Any] | None = None) -> str:
        """Return the path or URL of the folder with the files of a cell. result: as in `read`."""
        return join(self.store.root, self._made_in(signature, result))

    def note_failure(self, signature: str, cause: str) -> None:
        """Write down a failure that the cell itself could not: its process is gone."""
        name = f"{folder_of(signature)}/{FAILURE}"
        if self.store.read(name) is None:
            self.store.write(name, f"{cause}\n".encode())

    def _make_entry(
        self, signature: str, claimed: Claim | None, listed: Set[str] | None = None
    ) -> Entry:
        """listed: all files of the ledger; None: not known, so each is asked for."""
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
        """Which code failed; None where nobody knows, so that today's is tried."""
        with suppress(DamageError):
            return self.read_provenance(signature).get("code", {}).get("package")


def fails_again(entry: Entry) -> bool:
    """Whether a failed cell would fail in the same way: a deterministic cause, the same code."""
    if entry.status != "failed" or entry.cause is None or is_damaged(entry):
        return False
    is_deterministic = causes.classify_cause(entry.cause) in causes.DETERMINISTIC
    return is_deterministic and entry.package == code_identity.hash_package()


def is_damaged(entry: Entry) -> bool:
    """Whether a cell counts as failed because a file of it is damaged, which its cause names."""
    return entry.status == "failed" and "is damaged" in (entry.cause or "")


def load_predictions(ledger: Ledger, signature: str) -> Predictions:
    """Return the predictions of a finished cell.

    Raises DamageError when it has none, and for a file that cannot be read.
    """
    content = ledger.read(signature, PREDICTIONS)
    if content is None:
        raise DamageError(f"{signature}: it has no {PREDICTIONS}; {REMOVE}")
    where = f"{ledger.locate_files(signature)}/{PREDICTIONS}"
    return stored_files.read_predictions(content, where)
