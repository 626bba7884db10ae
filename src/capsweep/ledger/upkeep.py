"""What is damaged in a ledger, and what nobody needs any more in it and in the storage around."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from capsweep.config import places
from capsweep.errors import DamageError
from capsweep.ledger import lease, stored_files, transfer
from capsweep.ledger.ledger import EVALUATIONS, Ledger, folder_of, is_damaged
from capsweep.ledger.stored_files import CONFIG, DIGESTS, POINTS, PREDICTIONS, REMOVE, RESULT
from capsweep.storage import scratch
from capsweep.storage.files import remove_path, user_cache_folder

# Below the storage, or below the user's cache on nodes whose storage is an object store.
SCRATCH = {"ray": r"sweep-", "scratch": r"[0-9a-f]{16}-"}
TEMPORARY = r"capsweep-(bench|code|error|wandb)-"  # in the folder of temporary files


@dataclass(frozen=True)
class Garbage:
    """A file or folder that can go, by its name in the ledger, or its path elsewhere.

    why: nobody needs it; size: in bytes; remove: removes it.
    """

    name: str
    why: str
    size: int
    remove: Callable[[], object] = field(compare=False, repr=False)


def find_garbage(ledger: Ledger, storage: Path | None = None) -> list[Garbage]:
    """Return all garbage of a ledger; nothing a result, a failure's cause or a resume depends on,
    and nothing that a living process uses.

    storage: the folder around it, whose scratch, and what was left in this machine's temporary
    folder, is looked at too.
    """
    garbage = list(_find_spent_checkpoints(ledger))
    if ledger.disk is not None:
        garbage += _find_temporaries(ledger.disk)
        garbage += _find_dead_claims(ledger.disk)
        for name in (f"superseded/{name}" for name in ledger.store.list_names("superseded")):
            size = sum(size for _, size in ledger.store.list_files(name))
            remove = partial(ledger.store.remove, name)
            garbage.append(Garbage(name, "result that a later run replaced", size, remove))
    return garbage if storage is None else [*garbage, *_find_scratch(storage)]


def _find_spent_checkpoints(ledger: Ledger) -> Iterator[Garbage]:
    if ledger.disk is None:  # a result and the checkpoint of its rerun stand side by side there
        return
    for signature in ledger.list_signatures():
        files = dict(ledger.store.list_files(folder_of(signature)))
        spent = f"{folder_of(signature)}/resume.ckpt"
        if spent in files and f"{folder_of(signature)}/{RESULT}" in files:
            remove = partial(ledger.store.remove, spent)
            yield Garbage(spent, "checkpoint of a finished cell", files[spent], remove)


def _find_temporaries(root: Path) -> Iterator[Garbage]:
    for path in root.rglob(".*.tmp"):
        with suppress(FileNotFoundError):  # it has its name by now
            status = path.stat()
            if time.time() - status.st_mtime > lease.SETTLED_SECONDS:
                name, remove = str(path.relative_to(root)), partial(remove_path, path)
                yield Garbage(name, "half a write", status.st_size, remove)


def _find_dead_claims(root: Path) -> Iterator[Garbage]:
    """Yield claims of processes that are gone, and of other machines where no beat came for an
    hour.
    """
    for claim in lease.read_claims(root).values():
        path = lease.claim_path(root, claim.signature, claim.generation)
        with suppress(FileNotFoundError):  # released a moment ago
            status = path.lstat()
            is_silent = time.time() - status.st_mtime > lease.SETTLED_SECONDS
            if claim.owner.is_dead or (is_silent and not claim.owner.is_alive):
                why = f"claim of {claim.owner}, which is gone"
                remove = partial(lease.drop_claim, root, claim)
                yield Garbage(f"claims/{path.name}", why, status.st_size, remove)


def _find_scratch(storage: Path) -> Iterator[Garbage]:
    folders = [(Path(tempfile.gettempdir()), TEMPORARY)]
    for root in dict.fromkeys((storage, user_cache_folder() / places.OUTPUTS)):
        folders += [(root / name, kinds) for name, kinds in SCRATCH.items()]
    for folder, kinds in folders:
        for path in scratch.find_left(folder, kinds):
            with suppress(FileNotFoundError):
                files = [path, *path.rglob("*")]
                size = sum(each.lstat().st_size for each in files if each.is_file())
                why = "traceback" if path.is_file() else "scratch folder"
                yield Garbage(
                    str(path), f"{why} of a process that is gone", size, partial(remove_path, path)
                )


def find_faults(ledger: Ledger, cell: str) -> Iterator[str]:
    """Yield a line for each fault of a cell, once, though several readers meet it.

    Every file is as it was stored, and what is read of it is of this cell.
    """
    result = ledger.read_result(cell)
    names = {*ledger.list_files(cell), *(result or {}).get(DIGESTS, {})} - {RESULT, "resume.ckpt"}
    if result is not None:
        names.add(CONFIG)
    names |= {f"{EVALUATIONS}/{name}" for name in ledger.list_evaluations(cell)}
    readers: list[Callable[[], object]] = [
        partial(_check_result, ledger, cell),
        partial(ledger.read_provenance, cell),
        partial(_check_science, ledger, cell),
        partial(ledger.read_rows, cell),
        partial(ledger.read_rows, cell, POINTS),
        *(partial(_check_file, ledger, cell, name) for name in sorted(names - {EVALUATIONS})),
    ]
    faults: dict[str, None] = {}
    for read in readers:
        try:
            read()
        except DamageError as error:
            faults[str(error)] = None
    yield from faults


def _check_result(ledger: Ledger, cell: str) -> None:
    result = ledger.sound_result(cell)
    if result is not None and not stored_files.is_signed(result):
        where = f"{ledger.locate_files(cell, result)}/{RESULT}"
        raise stored_files.damage_error(where, "it has no digest, so nothing proves it", REMOVE)


def _check_science(ledger: Ledger, cell: str) -> None:
    science = ledger.read_science(cell)
    if science is not None:
        entry = ledger.judge(cell, ledger.entry(cell), science)
        if is_damaged(entry):
            raise DamageError(entry.cause)


def _check_file(ledger: Ledger, cell: str, name: str) -> None:
    content, where = ledger.read(cell, name), f"{ledger.locate_files(cell)}/{name}"
    if content is None and name not in transfer.OPTIONAL:
        raise stored_files.damage_error(where, "it is absent", REMOVE)
    if content is not None and name == PREDICTIONS:
        stored_files.read_predictions(content, where)
    if content is not None and name.startswith(f"{EVALUATIONS}/") and name.endswith(".npz"):
        stored_files.read_arrays(content, where, "remove it, and evaluate the cell again")
