"""Find the damaged files of a ledger, and garbage in the ledger and in scratch folders."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from capsweep.config import places
from capsweep.errors import DamageError
from capsweep.ledger import lease, stored_files, transfer
from capsweep.ledger.ledger import EVALUATIONS, Ledger, is_damaged
from capsweep.ledger.stored_files import CONFIG, DIGESTS, REMOVE, RESULT, RESUME
from capsweep.storage import scratch
from capsweep.storage.files import remove_path, user_cache_folder

# Folders for scratch files, each with the pattern of the names in it. These folders are in the
# storage. If the storage is an object store, they are in the user's cache on each node.
SCRATCH = {"ray": r"sweep-", "scratch": r"[0-9a-f]{16}-"}
TEMPORARY = r"capsweep-(bench|code|error|wandb)-"  # names in the temporary folder


@dataclass(frozen=True)
class Garbage:
    """A file or folder that can be removed.

    Attributes:
        name: The path relative to the ledger. Outside the ledger: the full path.
        why: Why the file or folder is not needed.
        size: The size in bytes.
        remove: Removes the file or folder.
    """

    name: str
    why: str
    size: int
    remove: Callable[[], object] = field(compare=False, repr=False)


def find_garbage(ledger: Ledger, storage: Path | None = None) -> Iterator[Garbage]:
    """Yield all garbage of a ledger.

    A file is not garbage if a result, a failure, a resumed run or a running process needs the file.
    In an object store nothing counts as garbage, because a checkpoint next to a result may belong
    to a run that repeats the cell.

    Args:
        ledger: The ledger.
        storage: The folder that contains the ledger. If `storage` is given, abandoned scratch files
            are garbage too. They are searched in this folder, in the user's cache and in the
            system's temporary folder.
    """
    if (root := ledger.disk) is not None:
        for path in root.glob(f"??/*/{RESUME}"):
            why = "checkpoint of a finished cell, which only more epochs need"
            if path.with_name(RESULT).exists():
                yield from _measure(path, why, root)
        for path in root.rglob(".*.tmp"):
            if _is_settled(path):
                yield from _measure(path, "incomplete file", root)
        for claim in lease.read_claims(root).values():
            path = lease.claim_path(root, claim.signature, claim.generation)
            if claim.owner.is_dead or (_is_settled(path) and not claim.owner.is_alive):
                for item in _measure(path, f"claim of {claim.owner}, which has ended", root):
                    yield replace(item, remove=partial(lease.remove_dead_claim, root, claim))
        for path in root.glob("superseded/*"):
            yield from _measure(path, "result that a later run replaced", root)
    if storage is not None:
        for path in _find_scratch(storage):
            kind = "traceback" if path.is_file() else "scratch folder"
            yield from _measure(path, f"{kind} of a process that has ended")


def _find_scratch(storage: Path) -> Iterator[Path]:
    yield from scratch.find_abandoned(Path(tempfile.gettempdir()), TEMPORARY)
    for root in dict.fromkeys((storage, user_cache_folder() / places.OUTPUTS)):
        for name, kinds in SCRATCH.items():
            yield from scratch.find_abandoned(root / name, kinds)


def _is_settled(path: Path) -> bool:
    """Return whether a path exists and was not changed for an hour."""
    with suppress(FileNotFoundError):
        return time.time() - path.lstat().st_mtime > lease.SETTLED_SECONDS
    return False


def _measure(path: Path, why: str, root: Path | None = None) -> Iterator[Garbage]:
    """Yield a path as garbage, with its size; yield nothing if another process removed the path."""
    with suppress(FileNotFoundError):
        files = [path, *path.rglob("*")]
        size = sum(each.lstat().st_size for each in files if each.is_file())
        name = str(path.relative_to(root) if root else path)
        yield Garbage(name, why, size, partial(remove_path, path))


def find_faults(ledger: Ledger, cell: str) -> Iterator[str]:
    """Read all files of a cell, and yield a line for each damaged or absent file.

    A file that belongs to another cell counts as damaged. A file that an export may leave out
    (`transfer.OPTIONAL`) may be absent. If several checks find the same fault, the line is yielded
    only once.
    """
    result = ledger.read_result(cell)
    names = {*ledger.list_files(cell), *(result or {}).get(DIGESTS, {})} - {RESULT, RESUME}
    if result is not None:
        names.add(CONFIG)
    names |= {f"{EVALUATIONS}/{name}" for name in ledger.list_files(cell, EVALUATIONS)}
    readers: list[Callable[[], object]] = [
        partial(ledger.read_result_or_raise, cell),
        partial(_check_science, ledger, cell),
        *(partial(_check_file, ledger, cell, name) for name in sorted(names - {EVALUATIONS})),
    ]
    faults: dict[str, None] = {}
    for read in readers:
        try:
            read()
        except DamageError as error:
            faults[str(error)] = None
    yield from faults


def _check_science(ledger: Ledger, cell: str) -> None:
    science = ledger.read_science(cell)
    if science is not None:
        entry = ledger.judge(cell, ledger.read_entry(cell), science)
        if is_damaged(entry):
            raise DamageError(entry.cause)


def _check_file(ledger: Ledger, cell: str, name: str) -> None:
    content, where = ledger.read_located(cell, name)
    if content is None:
        if name not in transfer.OPTIONAL:
            raise stored_files.damage_error(where, "it is absent", REMOVE)
        return
    stored_files.check_content(name, content, where, cell, REMOVE)
    if name.startswith(f"{EVALUATIONS}/") and name.endswith(".npz"):
        stored_files.read_arrays(content, where, "remove it, and evaluate the cell again")
