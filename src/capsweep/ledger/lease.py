"""Which process runs a cell: a claim with a lease.

No cell of a ledger on a POSIX file system runs twice at once.

A claim is a file `claims/SIGNATURE.GENERATION`, made by an exclusive link. Whoever takes over from
a dead owner makes the next generation, which again only one can; nothing is ever renamed or judged
by a clock that is not one's own. Durations are monotonic, so a clock set back breaks no lease.
"""

import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from capsweep.ledger.records import Count, Record
from capsweep.storage.files import read_plain_file, remove_path, write_text
from capsweep.storage.scratch import identify_machine, read_start_time

BEAT_SECONDS = 10.0
LEASE_SECONDS = 60.0  # NFS may show a beat late by some seconds
SETTLED_SECONDS = 3600.0  # what is untouched for that long is nobody's work any more
NAME = re.compile(r"(?P<signature>[^.].*)\.(?P<generation>[0-9]{6,18})")  # see `claim_path`


class ClaimedElsewhereError(RuntimeError):
    """Another process runs the cell; the message says which."""


class ClaimLostError(RuntimeError):
    """Another process took the cell over, because this one gave no sign of life for a lease."""


class Owner(Record):
    """A process: where it is, and when it was started, since ids are used again."""

    host: str
    machine: str  # this boot of this kernel, this namespace of process ids
    pid: Count
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_alive(self) -> bool:
        """Whether the owner certainly runs; only processes of this machine can be judged."""
        return self.machine == identify_machine() and read_start_time(self.pid) == self.started

    @property
    def is_dead(self) -> bool:
        """Whether the owner is certainly gone; only processes of this machine can be judged."""
        return self.machine == identify_machine() and read_start_time(self.pid) != self.started


class Claim(Record):
    """One generation of a claim: its name has signature and generation, its content the rest.

    `beat` grows as long as the owner lives: one that stands still for a lease is a dead one's.
    """

    signature: str
    generation: Count
    owner: Owner
    beat: Count

    @property
    def last_sign(self) -> str:
        """Equal for two looks at a claim if and only if its owner gave no sign of life between."""
        owner = self.owner
        return f"{self.generation} {self.beat} {owner.machine} {owner.pid} {owner.started}"


def get_current_owner() -> Owner:
    """Return this process."""
    pid = os.getpid()
    started = read_start_time(pid) or ""
    return Owner(host=socket.gethostname(), machine=identify_machine(), pid=pid, started=started)


def read_claims(ledger: Path) -> dict[str, Claim]:
    """Return the newest claim of every claimed cell, dead or alive."""
    newest = {signature: numbers[-1] for signature, numbers in _list_generations(ledger).items()}
    claims = (_read_generation(ledger, *place) for place in newest.items())
    return {claim.signature: claim for claim in claims if claim is not None}


def read_claim(ledger: Path, signature: str) -> Claim | None:
    """Return the newest claim of a cell, dead or alive."""
    generations = _list_generations(ledger).get(signature)
    return _read_generation(ledger, signature, generations[-1]) if generations else None


def _list_generations(ledger: Path) -> dict[str, list[int]]:
    """Of every claimed cell, in order."""
    try:
        names = os.listdir(ledger / "claims")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    generations: dict[str, list[int]] = {}
    for match in filter(None, map(NAME.fullmatch, sorted(names))):
        generations.setdefault(match["signature"], []).append(int(match["generation"]))
    return generations


def _read_generation(ledger: Path, signature: str, generation: int) -> Claim | None:
    """A damaged one is somebody's, until it stands still for a lease: its owner writes it anew with
    the next beat.
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
    """Return where a claim stands."""
    return ledger / "claims" / f"{signature}.{generation:06d}"


def remove_claims(ledger: Path, signature: str) -> None:
    """Remove every claim on a cell; for a person who knows that its owner is gone."""
    for generation in _list_generations(ledger).get(signature, ()):
        remove_path(claim_path(ledger, signature, generation))


def remove_dead_claim(ledger: Path, claim: Claim) -> None:
    """Remove the claim of a process that is gone, unless another one has taken the cell over."""
    with suppress(ClaimedElsewhereError):
        take_lease(ledger, claim.signature, claim.last_sign).release()


class Lease:
    """A claim of this process, kept alive by a thread until it is released."""

    def __init__(self, ledger: Path, signature: str, generation: int) -> None:
        self.ledger, self.signature, self.generation = ledger, signature, generation
        self.is_lost = False
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._thread.start()

    def raise_if_lost(self) -> None:
        """Raise ClaimLostError when another process has taken the cell over."""
        if self.is_lost:
            raise ClaimLostError(f"cell {self.signature} was taken over by another process")

    def release(self) -> None:
        """Stop beating, and remove what is ours and what died before us."""
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
    """Claim a cell. `dead`: the last sign of a claim that the caller saw stand still for a lease.

    Raises ClaimedElsewhereError when a living process has it.
    """
    newest = read_claim(ledger, signature)
    if newest is not None and newest.last_sign != dead_claim and not newest.owner.is_dead:
        raise ClaimedElsewhereError(f"cell {signature} is being run by {newest.owner}")
    generation = 1 if newest is None else newest.generation + 1
    if not _create_claim_file(claim_path(ledger, signature, generation)):
        raise ClaimedElsewhereError(f"cell {signature} was just claimed by another process")
    return Lease(ledger, signature, generation)


def _create_claim_file(path: Path) -> bool:
    """Make a claim file, with its content, if and only if it is not there: a link is both."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    _write_claim(temporary)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


@contextmanager
def hold_lease(ledger: Path | None, signature: str, dead_claim: str = "") -> Iterator[Lease | None]:
    """A claim for the time of a block; None, and no claim, where there is no POSIX ledger."""
    if ledger is None:
        yield None
        return
    lease = take_lease(ledger, signature, dead_claim)
    try:
        yield lease
    finally:
        lease.release()


class LeaseMonitor:
    """Sees which claims give no sign of life, by this process's own clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._seen: dict[str, tuple[Claim, float]] = {}

    def is_dead(self, claim: Claim) -> bool:
        """Whether the owner is gone, or its beat stood still for a lease since first seen."""
        if claim.owner.is_dead:
            return True
        now = self.clock()
        last, since = self._seen.get(claim.signature, (None, now))
        if last != claim:
            self._seen[claim.signature] = (claim, now)
            return False
        return now - since >= LEASE_SECONDS
