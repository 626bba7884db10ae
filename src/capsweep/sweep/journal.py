"""An Optuna journal in an object store, which can neither append to a file nor lock one."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from capsweep.errors import UserError
from capsweep.storage.stores import Store, StoreError, hide_query

PATIENCE, PAUSE = 30.0, 1.0  # seconds: a search of days shall outlive a minute of a store's


class StoredJournal(BaseJournalBackend):
    """The lines that JournalFileBackend has in a file, in one object: put whole after each change.

    The store's copy is read when the study is opened, and none is kept on this machine: it would be
    that of the last driver here, of any bucket, where the store has what the last driver anywhere
    has seen. One driver at a time: what another has put is never overwritten, as far as can be seen
    without a lock, and the one that comes second ends.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self._content = store.read(name) or b""
        self._logs = self._parsed(self._content)

    def read_logs(self, log_number_from: int) -> Sequence[dict[str, Any]]:
        """See BaseJournalBackend."""
        return self._logs[log_number_from:]

    def append_logs(self, logs: Sequence[Mapping[str, Any]]) -> None:
        """See BaseJournalBackend. Raises StoreError when the store takes nothing for a while, and
        UserError when another driver has written; the journal is then as it was.
        """
        lines = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        _patiently(self._check_alone)
        _patiently(lambda: self.store.write(self.name, self._content + lines))
        self._content += lines
        self._logs += self._parsed(lines)

    @property
    def _named(self) -> str:
        return f"places.storage={hide_query(self.store.root)}: {self.name}"

    def _check_alone(self) -> None:
        folder = self.name.rpartition("/")[0]
        if dict(self.store.list_files(folder)).get(self.name, 0) != len(self._content):
            raise UserError(
                f"{self._named}: another driver of this search has written it, and an object store "
                "has no locks: end all but one; the same command goes on with what was seen"
            )

    def _parsed(self, content: bytes) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in content.splitlines()]
        except ValueError as error:
            raise UserError(
                f"{self._named}: is damaged ({error}); remove it: the search begins anew, and "
                "takes what is finished from the ledger"
            ) from error


def _patiently(ask: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            ask()
        except StoreError:
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE)
        else:
            return
