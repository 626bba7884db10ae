"""Leases of cells, so that two processes never run the same cell of a ledger at the same time.

Leases need a POSIX file system. To claim a cell, a process creates the file
`claims/SIGNATURE.GENERATION` as a hard link. This fails if the file exists, so only one process can
claim the cell. The process is the owner of the claim. While the owner runs the cell, it writes
beats: it replaces the file by a file with a higher counter. If the owner has ended, another process
takes the cell over by creating the file of the next generation. Again, only one process can create
this file. These files are never renamed, and the clocks of different machines are never compared.
Durations are measured with a monotonic clock, so a lease remains valid if the system clock is set
back.
"""

import json
import os
import re
import secrets
import socket
import threading
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from capsweep.ledger.records import Count, Record
from capsweep.storage.files import read_plain_file, remove_path, write_text
from capsweep.storage.scratch import identify_machine, read_start_time
from capsweep.storage.stores import Disk

BEAT_SECONDS = 10.0  # time between two beats of an owner
LEASE_SECONDS = 60.0  # a lease ends after this time without a beat; NFS may show beats late
LOOK_SECONDS = 1.0  # time between two reads of a claim whose next beat is awaited
SETTLED_SECONDS = 3600.0  # a file that was not changed for this time counts as abandoned
NAME = re.compile(r"(?P<signature>[^.].*)\.(?P<generation>[0-9]{6,18})")  # see `claim_path`


class ClaimedElsewhereError(RuntimeError):
    """Another process runs the cell, or has just claimed it."""


class ClaimLostError(RuntimeError):
    """Another process took the cell over, because this process wrote no beat for LEASE_SECONDS."""


class Owner(Record):
    """The process that owns a claim."""

    host: str  # name of the host
    machine: str  # identifies the present boot of the machine, and the namespace of process ids
    pid: Count  # process id
    started: str  # start time of the process, because process ids are reused

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_alive(self) -> bool:
        """Whether the owner certainly runs; False if the owner is on another machine."""
        return self.machine == identify_machine() and read_start_time(self.pid) == self.started

    @property
    def is_dead(self) -> bool:
        """Whether the owner has certainly ended; False if the owner is on another machine."""
        return self.machine == identify_machine() and read_start_time(self.pid) != self.started


class Claim(Record):
    """One generation of the claim on a cell.

    The name of the claim's file contains `signature` and `generation`. The content of the file
    contains `owner` and `beat`.
    """

    signature: str  # signature of the cell
    generation: Count  # 1 for the first owner, plus 1 for each process that took over
    owner: Owner  # the process that runs the cell
    beat: Count  # a counter; a living owner increases it at least once in LEASE_SECONDS

    @property
    def last_sign(self) -> str:
        """A text that changes with the owner and with every beat.

        If a claim is read twice and has the same text, the owner wrote no beat in the meantime.
        """
        owner = self.owner
        return f"{self.generation} {self.beat} {owner.machine} {owner.pid} {owner.started}"


def get_current_owner() -> Owner:
    """Return an `Owner` that describes this process."""
    pid = os.getpid()
    started = read_start_time(pid) or ""
    return Owner(host=socket.gethostname(), machine=identify_machine(), pid=pid, started=started)


def read_claims(ledger: Path) -> dict[str, Claim]:
    """Read the newest claim on each claimed cell, even if the owner of the claim has ended."""
    newest = {signature: numbers[-1] for signature, numbers in _list_generations(ledger).items()}
    claims = (_read_generation(ledger, *place) for place in newest.items())
    return {claim.signature: claim for claim in claims if claim is not None}


def read_claim(ledger: Path, signature: str) -> Claim | None:
    """Read the newest claim on a cell, even if the owner of the claim has ended.

    Returns:
        The claim; None if the cell is not claimed.
    """
    generations = _list_generations(ledger).get(signature)
    return _read_generation(ledger, signature, generations[-1]) if generations else None


def _list_generations(ledger: Path) -> dict[str, list[int]]:
    """List the generations of the claims on each cell, by signature, in ascending order."""
    generations: dict[str, list[int]] = {}
    for match in filter(None, map(NAME.fullmatch, Disk(ledger).list_names("claims"))):
        generations.setdefault(match["signature"], []).append(int(match["generation"]))
    return generations


def _read_generation(ledger: Path, signature: str, generation: int) -> Claim | None:
    """Read one generation of a claim, or return None if the claim was released.

    A damaged file counts as a claim of an unknown owner. If the real owner still runs, its next
    beat replaces the file. Otherwise the claim expires.
    """
    path = claim_path(ledger, signature, generation)
    name: dict[str, Any] = {"signature": signature, "generation": generation}
    try:
        return Claim(**from_json(read_plain_file(path)) | name)
    except (FileNotFoundError, NotADirectoryError):  # released a moment ago
        return None
    except (IsADirectoryError, TypeError, ValueError):
        host = f"an unknown host: {path} is damaged"
        return Claim(**name, owner=Owner(host=host, machine="", pid=0, started=""), beat=0)


def claim_path(ledger: Path, signature: str, generation: int) -> Path:
    """Return the path of a claim's file, `claims/SIGNATURE.GENERATION` in the ledger."""
    return ledger / "claims" / f"{signature}.{generation:06d}"


def remove_dead_claim(ledger: Path, claim: Claim) -> None:
    """Remove a claim whose owner has ended; do nothing if another process took the cell over."""
    with suppress(ClaimedElsewhereError):
        take_lease(ledger, claim.signature, claim.last_sign).release()


class Lease(AbstractContextManager["Lease"]):
    """A claim of this process on a cell.

    `take_lease` creates the file of the claim. Then a thread of this object writes beats until
    `release` is called or another process takes the cell over. A `with` block calls `release` at
    its end.

    Args:
        ledger: The ledger's folder.
        signature: The signature of the cell.
        generation: The generation of the claim.

    Attributes:
        is_lost: Whether another process has taken the cell over.
    """

    def __init__(self, ledger: Path, signature: str, generation: int) -> None:
        self.ledger, self.signature, self.generation = ledger, signature, generation
        self.is_lost = False
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.release()

    def raise_if_lost(self) -> None:
        """Raise ClaimLostError if another process has taken the cell over."""
        if self.is_lost:
            raise ClaimLostError(f"cell {self.signature} was taken over by another process")

    def release(self) -> None:
        """Stop writing beats, and remove this claim and the claims of earlier owners."""
        self._released.set()
        self._thread.join()
        for generation in _list_generations(self.ledger).get(self.signature, ()):
            if generation <= self.generation:
                remove_path(claim_path(self.ledger, self.signature, generation))

    def _keep_beating(self) -> None:
        beat = 0
        while not self._released.wait(BEAT_SECONDS):
            beat += 1
            try:
                generations = _list_generations(self.ledger).get(self.signature, [])
                if generations[-1:] != [self.generation]:
                    self.is_lost = True
                    return
                _write_claim(claim_path(self.ledger, self.signature, self.generation), beat)
            except OSError:  # a full or absent disk: the next beat tries again
                continue


def _write_claim(path: Path, beat: int = 0) -> None:
    write_text(path, json.dumps({"owner": get_current_owner().model_dump(), "beat": beat}))


def take_lease(ledger: Path, signature: str, dead_claim: str = "") -> Lease:
    """Claim a cell for this process.

    An earlier claim is taken over in two cases: if its owner has certainly ended (`Owner.is_dead`),
    or if it is the claim that `dead_claim` names.

    Args:
        ledger: The ledger's folder.
        signature: The signature of the cell.
        dead_claim: The `last_sign` of a claim that may be taken over, because the caller knows that
            the owner of this claim has ended; "" if there is no such claim.

    Returns:
        The lease. It writes beats until it is released.

    Raises:
        ClaimedElsewhereError: If another process runs the cell or has just claimed it.
        OSError: If the claim's file cannot be written.
    """
    newest = read_claim(ledger, signature)
    if newest is not None and newest.last_sign != dead_claim and not newest.owner.is_dead:
        raise ClaimedElsewhereError(f"cell {signature} is being run by {newest.owner}")
    generation = 1 if newest is None else newest.generation + 1
    if not _create_claim_file(claim_path(ledger, signature, generation)):
        raise ClaimedElsewhereError(f"cell {signature} was just claimed by another process")
    return Lease(ledger, signature, generation)


def _create_claim_file(path: Path) -> bool:
    """Create a claim file for this process; return False if the file exists already.

    The content is written to a temporary file, and a hard link then gives the file its final name.
    So no other process sees an incomplete claim. The link fails if the final name exists.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    _write_claim(temporary)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


class LeaseMonitor:
    """A monitor that recognises whether the owner of a claim has ended.

    It measures time only with the clock of this process, which never goes back.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Claim, float]] = {}

    def is_dead(self, claim: Claim) -> bool:
        """Return whether a claim's owner has ended, or has written no beat for LEASE_SECONDS.

        The time is measured from the first call of this method in which the claim had its present
        beat.
        """
        if claim.owner.is_dead:
            return True
        now = time.monotonic()
        last, since = self._seen.get(claim.signature, (None, now))
        if last != claim:
            self._seen[claim.signature] = (claim, now)
            return False
        return now - since >= LEASE_SECONDS


def check_dead(ledger: Path, claim: Claim) -> None:
    """Check that the owner of a claim has ended, or writes no beat for LEASE_SECONDS.

    If the owner may run on another machine, its next beat is awaited for LEASE_SECONDS.

    Raises:
        ClaimedElsewhereError: If the owner runs, or another process took the cell over.
    """
    monitor, newest = LeaseMonitor(), claim
    while not monitor.is_dead(claim):
        if claim.owner.is_alive or newest.last_sign != claim.last_sign:
            raise ClaimedElsewhereError(f"cell {claim.signature} is being run by {newest.owner}")
        time.sleep(LOOK_SECONDS)
        newest = read_claim(ledger, claim.signature) or claim  # None: its owner has released it
