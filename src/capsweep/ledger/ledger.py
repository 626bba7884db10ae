"""The ledger, read: what is known of a cell, of many cells, and what is in their folders."""

import json
from collections.abc import Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.errors import UserError
from capsweep.ledger import causes, claim
from capsweep.ledger.claim import Claim
from capsweep.ledger.entry import Entry
from capsweep.ledger.store import Disk, Store, open_store
from capsweep.object_store import join

READERS = 32  # an object store answers slowly, but many at once
FEW = 8  # cells; for more, an object store is listed as a whole, 1,000 names a request
EVALUATIONS = "evals"  # the folder of a cell for what was asked of it later


def folder_of(signature: str) -> str:
    """Where a cell's results are, below the ledger."""
    return f"{signature[:2]}/{signature}"


class Ledger:
    """Finished and failed cells, content-addressed by signature, at a path or a URL."""

    def __init__(self, root: str | Path) -> None:
        self.store: Store = open_store(root)

    @cached_property
    def disk(self) -> Path | None:
        """The ledger's folder where it is on a POSIX file system, which alone has claims."""
        return self.store.path if isinstance(self.store, Disk) else None

    def entry(self, signature: str) -> Entry:
        """What is known of a cell. A result that cannot be read counts as failed, and says so."""
        claimed = None if self.disk is None else claim.read(self.disk, signature)
        return self._entry(signature, claimed)

    def entries(self, signatures: Iterable[str]) -> dict[str, Entry]:
        """What is known of many cells."""
        claims = self.claims()
        asked = list(dict.fromkeys(signatures))

        if self.disk is not None:
            return {name: self._entry(name, claims.get(name)) for name in asked}
        listed = {name for name, _ in self.store.files("")} if len(asked) > FEW else None

        def one(signature: str) -> Entry:
            return self._entry(signature, None, listed)

        with ThreadPoolExecutor(READERS) as pool:
            return dict(zip(asked, pool.map(one, asked), strict=True))

    def entries_of(self, cells: Iterable[Cell]) -> dict[str, Entry]:
        """As `entries`, and results that other code made are marked stale."""
        by_signature = {cell.signature: cell for cell in cells}
        found = self.entries(by_signature)
        return {
            signature: marked(entry, by_signature[signature]) for signature, entry in found.items()
        }

    def claims(self) -> dict[str, Claim]:
        """The newest claim of every claimed cell, dead or alive."""
        return {} if self.disk is None else claim.read_all(self.disk)

    def signatures(self) -> list[str]:
        """Every cell that has a folder, sorted."""
        starts = [name for name in self.store.names("") if len(name) == 2]
        return [
            signature
            for start in starts
            for signature in self.store.names(start)
            if signature.startswith(start)
        ]

    def find(self, prefix: str) -> str:
        """The one signature that starts with `prefix`. Raises UserError for none or several."""
        start = prefix[:2]
        starts = [start] if len(start) == 2 else []
        found = [s for name in starts for s in self.store.names(name) if s.startswith(prefix)]
        if len(found) != 1:
            have = f"{len(found)} cells" if found else "no cell"
            raise UserError(f"{prefix}: {have} of {self.store.root}; see `capsweep ledger ls`")
        return found[0]

    def read(self, signature: str, name: str) -> bytes | None:
        """A file of a cell; None when it is absent."""
        for path in (f"{folder}/{name}" for folder in self._folders(signature)):
            if (content := self.store.read(path)) is not None:
                return content
        return None

    def write_evaluation(self, signature: str, name: str, content: bytes) -> str:
        """Write `evals/NAME` beside the result that was evaluated; where it is.

        Raises UserError for a cell that is not finished.
        """
        result = self.result(signature)
        if result is None:
            raise UserError(f"{signature}: it has no result any more; evaluate it again")
        path = f"{self._made_in(signature, result)}/{EVALUATIONS}/{name}"
        self.store.write(path, content)
        return join(self.store.root, path)

    def _made_in(self, signature: str, result: Mapping[str, Any]) -> str:
        """The folder of the files of a cell: in an object store, that of its attempt."""
        attempt = None if self.disk is not None else result.get("attempt")
        return f"{folder_of(signature)}/{attempt}" if attempt else folder_of(signature)

    def result(self, signature: str) -> dict[str, Any] | None:
        """The result of a finished cell; a damaged one is none."""
        content = self.store.read(f"{folder_of(signature)}/result.json")
        try:
            return None if content is None else json.loads(content)
        except ValueError:
            return None

    def science(self, signature: str) -> dict[str, Any] | None:
        """The science configuration that a cell was started with."""
        content = self.read(signature, "config.yaml")
        return None if content is None else yaml.load(content, yaml.CSafeLoader)

    def provenance(self, signature: str) -> dict[str, Any]:
        """Where a cell's numbers come from; empty when nothing was written."""
        content = self.read(signature, "provenance.json")
        return {} if content is None else json.loads(content)

    def rows(self, signature: str) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per epoch in order; the last of an epoch counts.

        A torn line, of a process that was killed while it wrote, is left out.
        """
        found: dict[int, dict[str, Any]] = {}
        for line in (self.read(signature, "metrics.jsonl") or b"").splitlines():
            try:
                row = json.loads(line)
                found[row["epoch"]] = row
            except (ValueError, KeyError, TypeError):
                continue
        return [found[epoch] for epoch in sorted(found)]

    def evaluations(self, signature: str) -> list[str]:
        """Names of the files in `evals/`, sorted; see `read`."""
        folders = (f"{folder}/{EVALUATIONS}" for folder in self._folders(signature))
        return sorted({name for folder in folders for name in self.store.names(folder)})

    def where(self, signature: str) -> str:
        """The path or URL of the folder with the files of a cell."""
        return join(self.store.root, self._folders(signature)[0])

    def _folders(self, signature: str) -> list[str]:
        """Where the files of a cell are looked for: that of its attempt, if any, comes first."""
        made_in = self._made_in(signature, {} if self.disk else self.result(signature) or {})
        return list(dict.fromkeys((made_in, folder_of(signature))))

    def note_failure(self, signature: str, cause: str) -> None:
        """Write down a failure that the cell itself could not: its process is gone."""
        name = f"{folder_of(signature)}/error.txt"
        if self.store.read(name) is None:
            self.store.write(name, f"{cause}\n".encode())

    def _entry(
        self, signature: str, claimed: Claim | None, listed: Set[str] | None = None
    ) -> Entry:
        """listed: all files of the ledger; None: not known, so each is asked for."""
        folder = folder_of(signature)

        def read(name: str) -> bytes | None:
            path = f"{folder}/{name}"
            return self.store.read(path) if listed is None or path in listed else None

        content = read("result.json")
        if content is not None:
            try:
                return Entry("done", json.loads(content))
            except ValueError:
                where = join(self.store.root, f"{folder}/result.json")
                return Entry("failed", cause=f"{where} is damaged; the cell is run again")
        if claimed is not None and not claimed.owner.is_dead:
            return Entry("running", owner=str(claimed.owner))
        if (error := read("error.txt")) is not None:
            package = self.provenance(signature).get("code", {}).get("package")
            return Entry("failed", cause=error.decode().partition("\n")[0], package=package)
        if read("stopped.json") is not None:
            return Entry("stopped")
        return Entry("missing")


def marked(entry: Entry, cell: Cell) -> Entry:
    """The entry, as stale when other code than today's made it, or code that nobody recorded."""
    if entry.status != "done" or entry.result is None:
        return entry
    made_by = entry.result.get("code", {}).get("numerics")
    if made_by == code_identity.numerics(cell.config):
        return entry
    return Entry("stale", entry.result)


def fails_again(entry: Entry) -> bool:
    """Whether a failed cell would fail in the same way: a deterministic cause, the same code."""
    if entry.status != "failed" or entry.cause is None or causes.can_succeed(entry.cause):
        return False
    return "is damaged" not in entry.cause and entry.package == code_identity.package()
