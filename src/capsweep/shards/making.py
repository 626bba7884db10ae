"""Makes what is missing of a data set of shards; `index.json` is written last.

A shard is a pure function of its job and part, and has its name when it is whole. So one that opens
as what it should be is kept, and anything else is made again. All of ours in the folder that is
neither a shard nor `index.json` is in STATE: the lock, and what the folder is to hold.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from capsweep.config.cell import flat
from capsweep.errors import DataError, UserError
from capsweep.shards import manifest
from capsweep.shards.layout import (
    DAMAGE_ERRORS,
    ShardJob,
    divide_into_parts,
    find_disagreements,
    open_shard,
    write_shard,
)
from capsweep.shards.manifest import FORMAT, INDEX, STATE, Manifest, Shard, ShardPart, count_bytes
from capsweep.storage import stores
from capsweep.storage.files import hash_file, read_plain_file, write_text

FINISHED, INCOMPLETE, INTERRUPTED = 0, 1, 130  # exit statuses
WANTED, LOCK = "wanted.json", "lock"  # in STATE
AGAIN = "run the same command again"


@dataclass(frozen=True)
class ShardOutcome:
    """What became of a part: its shard, made now or kept; or why there is none."""

    part: ShardPart
    shard: Shard | None = None
    is_made: bool = False
    cause: str = ""


# Makes parts in a folder and yields their outcomes as they end. Raises what ends all of it: an
# error of the disk would meet other shards as well. Closing the iterator ends what runs.
TaskRunner: TypeAlias = Callable[[ShardJob, Path, Sequence[ShardPart]], Generator[ShardOutcome]]


@dataclass
class MakingResult:
    """What became of a data set.

    status: of the command. shards: those that are whole. made: how many of them were made now.
    failures: the names of files that are missing, by cause.
    """

    status: int = INCOMPLETE
    shards: dict[ShardPart, Shard] = field(default_factory=dict)
    made: int = 0
    failures: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class MakingPlan:
    """What is to be made, and where."""

    job: ShardJob
    folder: Path
    parts: Sequence[ShardPart]

    @cached_property
    def missing(self) -> list[ShardPart]:
        """Parts of which no shard is there."""
        return [part for part in self.parts if not (self.folder / part.name).exists()]

    @property
    def missing_bytes(self) -> int:
        """About as many bytes are to be written."""
        return sum(part.examples for part in self.missing) * count_bytes(self.job.list_fields())

    @property
    def free(self) -> int:
        """Bytes that are free on the disk of the folder."""
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        return shutil.disk_usage(existing).free

    @property
    def identity(self) -> str:
        """All that must be equal in two commands that fill one folder, a dotted key a line."""
        content, names = self.job.content, self.job.list_fields()
        shards = {split: sum(p.split == split for p in self.parts) for split in content.splits}
        values = {**asdict(content), "fields": ", ".join(names), "shards": shards}
        return json.dumps({"identity": flat(values)}, indent=2) + "\n"


def make_plan(job: ShardJob, folder: Path, shards: int | None) -> MakingPlan:
    """Divide the examples, and see what is in the folder. shards: as of `divide_into_parts`.

    Raises DataError when the folder holds something else, UserError when the disk is too small or
    the folder is none.
    """
    stores.check_folder(str(folder), "STORAGE")
    plan = MakingPlan(job, folder, divide_into_parts(job, shards))
    check_folder(plan)
    if plan.missing_bytes > plan.free:
        raise UserError(
            f"STORAGE={folder}: {plan.missing_bytes:,} bytes are to be written and {plan.free:,} "
            "are free there; free space, or set STORAGE to a larger disk"
        )
    return plan


def check_folder(plan: MakingPlan) -> None:
    """Refuse a folder that holds something else. Raises DataError naming what is not there."""
    folder, wanted = plan.folder, plan.folder / STATE / WANTED
    if not wanted.exists():
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        if others := [name for name in names if name[0] != "." and name != "lost+found"]:
            some = ", ".join(others[:3])
            raise DataError(f"STORAGE={folder}: holds other files ({some}); name an empty folder")
        return
    there = read_plain_file(wanted).decode(errors="replace").splitlines()
    asked = plan.identity.splitlines()
    if there != asked:
        new = ", ".join(line.strip(" ,") for line in asked if line not in there)
        raise DataError(
            f"STORAGE={folder}: another data set, or another layout of it, is there (new is {new}; "
            f"see {wanted}); name another folder, or ask for what is there"
        )


def run_locally(job: ShardJob, folder: Path, parts: Sequence[ShardPart]) -> Generator[ShardOutcome]:
    """Make one shard after the other in this process, without Ray."""
    for part in parts:
        yield make_shard(job, folder, part)


def make_shard(job: ShardJob, folder: Path, part: ShardPart) -> ShardOutcome:
    """Keep a shard that is whole, make any other. Raises OSError."""
    if not (folder / STATE / WANTED).is_file():
        raise FileNotFoundError(errno.ENOENT, "this node does not see the driver's folder")
    if (shard := _find_whole(job, folder, part)) is not None:
        return ShardOutcome(part, shard)
    made = write_shard(folder, job, part, job.build_maker(part.split))
    return ShardOutcome(part, made, is_made=True)


def _find_whole(job: ShardJob, folder: Path, part: ShardPart) -> Shard | None:
    """Return the shard that is there already, if what it says of itself, HDF5's checksums, and its
    hash in an earlier `index.json` prove it.
    """
    path = folder / part.name
    if path.is_symlink() or not path.is_file():
        return None
    shard = Shard(**asdict(part), bytes=path.stat().st_size, sha256=hash_file(path))
    try:
        known = manifest.read_manifest(folder).shards
    except DataError:  # none yet, or altered: it is written anew at the end
        known = ()
    if known and shard not in known:
        return None
    try:
        with open_shard(path) as file:
            if any(find_disagreements(file, build_manifest(job, []), shard)):
                return None  # it may declare any size
            for stored in file.values():
                stored[:]
    except DAMAGE_ERRORS:
        return None
    return shard


def build_manifest(job: ShardJob, shards: Sequence[Shard]) -> Manifest:
    """Return the manifest of these shards."""
    content, fields = job.content, job.list_fields()
    return Manifest(FORMAT, content.fingerprint, content, "pixels", fields, tuple(shards))


def run_plan(
    plan: MakingPlan,
    run_tasks: TaskRunner,
    on_outcome: Callable[[ShardOutcome], object] = lambda _: None,
) -> MakingResult:
    """Make what is missing, then write `index.json`. What fails or is interrupted stays missing.

    Raises UserError when the folder cannot be written or another process fills it.
    """
    result = MakingResult()
    with _hold_folder(plan):
        try:
            # Closed at an interruption too, before the folder is left: then nothing runs any more.
            with closing(run_tasks(plan.job, plan.folder, plan.parts)) as outcomes:
                for outcome in outcomes:
                    if outcome.shard is None:
                        result.failures.setdefault(outcome.cause, []).append(outcome.part.name)
                    else:
                        result.shards[outcome.part] = outcome.shard
                        result.made += outcome.is_made
                    on_outcome(outcome)
            if len(result.shards) == len(plan.parts):
                shards = [result.shards[part] for part in plan.parts]
                manifest.write_manifest(plan.folder, build_manifest(plan.job, shards))
                result.status = FINISHED
        except KeyboardInterrupt:
            result.status = INTERRUPTED
        except OSError as error:
            cause = (
                f"{plan.folder}: {error.strerror or error}; free space there, correct its "
                f"permissions, or set STORAGE to another folder that all nodes share; then {AGAIN}"
            )
            result.failures[cause] = [INDEX]
    return result


@contextmanager
def _hold_folder(plan: MakingPlan) -> Iterator[None]:
    """Make the folder, and hold its lock for the time of a block: a dead process holds none."""
    folder = plan.folder
    with ExitStack() as stack:
        try:
            (folder / STATE).mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / STATE / LOCK).open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            check_folder(plan)  # another process may have begun meanwhile
            write_text(folder / STATE / WANTED, plan.identity)
        except BlockingIOError as error:
            raise UserError(
                f"STORAGE={folder}: is being filled by another process; wait for its end, or end it"
            ) from error
        except OSError as error:
            raise UserError(
                f"STORAGE={folder}: cannot be written, or has no locks ({error.strerror}); "
                "correct that, or set STORAGE to another folder"
            ) from error
        stack.callback(_remove_temporaries, folder)
        yield


def _remove_temporaries(folder: Path) -> None:
    """Remove what killed workers left; the caller alone fills the folder."""
    for name in ("*.h5", INDEX):
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)
