"""Functions that make missing or damaged shards of a data set, and write `index.json` last.

The content of a shard depends only on its `ShardJob` and its `ShardPart`. A file gets the name of
its shard only when the file is complete. If the same command runs again, intact shards are kept,
and damaged shards are made again. Besides shards and `index.json`, the folder of a data set has
only the folder STATE, which contains a lock and a description of the data set.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from capsweep.config.cell import flatten
from capsweep.errors import DataError, UserError
from capsweep.shards import layout, manifest
from capsweep.shards.layout import ShardJob
from capsweep.shards.manifest import FORMAT, INDEX, STATE, Manifest, Shard, ShardPart, count_bytes
from capsweep.storage import stores
from capsweep.storage.files import hash_file, read_plain_file, write_text

FINISHED, INCOMPLETE, INTERRUPTED = 0, 1, 130  # exit statuses
WANTED, LOCK = "wanted.json", "lock"  # files in STATE: a description of the data set; a lock
RERUN_HINT = "type the same command again to continue"


@dataclass(frozen=True)
class ShardOutcome:
    """The result of making one shard."""

    part: ShardPart  # the shard to make
    shard: Shard | None = None  # entry for the manifest; None after a failure
    is_made: bool = False  # whether this run made the shard; False if it existed before, or failed
    cause: str = ""  # reason of a failure


@dataclass
class MakingResult:
    """The result of making a data set."""

    status: int = INCOMPLETE  # exit status of the command
    shards: dict[ShardPart, Shard] = field(default_factory=dict)  # entries of complete shards
    made: int = 0  # number of shards that this run made
    # for each cause of a failure, the names of the files that are missing
    failures: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class MakingPlan:
    """A plan to make a data set: its shards, and the folder for them."""

    job: ShardJob  # makes the examples
    folder: Path  # where the shards are written
    parts: Sequence[ShardPart]  # all shards, also those that exist

    @cached_property
    def missing(self) -> list[ShardPart]:
        """The shards whose files do not exist yet."""
        return [part for part in self.parts if not (self.folder / part.name).exists()]

    @property
    def missing_bytes(self) -> int:
        """The approximate number of bytes of the missing shards."""
        return sum(part.examples for part in self.missing) * count_bytes(self.job.fields)

    @property
    def free(self) -> int:
        """The free bytes on the disk of the folder."""
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        return shutil.disk_usage(existing).free

    @property
    def identity(self) -> str:
        """A description of the data set and its shards, as JSON with one dotted key per line.

        A folder that was begun with one description cannot be continued with another.
        """
        content = self.job.content
        shards = {split: sum(p.split == split for p in self.parts) for split in content.splits}
        values = {**asdict(content), "fields": ", ".join(self.job.fields), "shards": shards}
        return json.dumps({"identity": flatten(values)}, indent=2) + "\n"


# A function that makes the shards of a plan, and yields the outcome of a shard as soon as the shard
# is made or has failed. An error that concerns all shards, such as a full disk, is raised. Closing
# the generator ends the running tasks.
TaskRunner: TypeAlias = Callable[[MakingPlan], Generator[ShardOutcome]]


def make_plan(job: ShardJob, folder: Path, shards: int | None) -> MakingPlan:
    """Divide a data set into shards, and check that a folder can hold them.

    Args:
        job: Makes the examples.
        folder: Where the shards are to be written.
        shards: Number of shards of "train"; None puts at most 100,000 examples into each shard.

    Raises:
        DataError: If the folder holds other files or another data set.
        UserError: If the disk has too few free bytes, if `folder` is not a folder, or if the number
            of shards is not possible.
    """
    stores.check_folder(str(folder), "STORAGE")
    plan = MakingPlan(job, folder, layout.divide_into_parts(job, shards))
    check_folder(plan)
    if plan.missing_bytes > plan.free:
        raise UserError(
            f"STORAGE={folder}: {plan.missing_bytes:,} bytes are needed, but {plan.free:,} are "
            "free; free space, or set STORAGE to a folder on a larger disk"
        )
    return plan


def check_folder(plan: MakingPlan) -> None:
    """Check that the folder of a plan is empty or was begun with the same plan.

    A folder that has only hidden files and `lost+found` counts as empty.

    Args:
        plan: The shards and their folder.

    Raises:
        DataError: If the folder holds other files, another data set, or the same data set divided
            into another number of shards.
    """
    folder, wanted = plan.folder, plan.folder / STATE / WANTED
    if not wanted.exists():
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        if others := [name for name in names if name[0] != "." and name != "lost+found"]:
            some = ", ".join(others[:3])
            raise DataError(f"STORAGE={folder}: holds other files ({some}); choose an empty folder")
        return
    stored_lines = read_plain_file(wanted).decode(errors="replace").splitlines()
    wanted_lines = plan.identity.splitlines()
    if stored_lines != wanted_lines:
        new = ", ".join(line.strip(" ,") for line in wanted_lines if line not in stored_lines)
        raise DataError(
            f"STORAGE={folder}: it was begun for other data or other shards (changed: {new}; see "
            f"{wanted}); choose another folder, or repeat the options of the first command"
        )


def run_locally(plan: MakingPlan) -> Generator[ShardOutcome]:
    """Make shards one after the other in this process, without Ray.

    Args:
        plan: The shards and their folder.

    Yields:
        The outcome of each shard, in the order of `plan.parts`.

    Raises:
        OSError: If a shard cannot be written.
    """
    for part in plan.parts:
        yield make_shard(plan.job, plan.folder, part)


def make_shard(job: ShardJob, folder: Path, part: ShardPart) -> ShardOutcome:
    """Make a shard, or keep its file if the folder has an intact file of this shard.

    Args:
        job: Makes the examples.
        folder: Where the shard is written. `run_plan` has prepared this folder.
        part: The shard to make.

    Raises:
        OSError: If the shard cannot be written, or if this node does not see the folder.
    """
    if not (folder / STATE / WANTED).is_file():
        raise FileNotFoundError(errno.ENOENT, "this node does not see the driver's folder")
    if (shard := _find_whole(job, folder, part)) is not None:
        return ShardOutcome(part, shard)
    made = layout.write_shard(folder, job, part, job.build_maker(part.split))
    return ShardOutcome(part, made, is_made=True)


def _find_whole(job: ShardJob, folder: Path, part: ShardPart) -> Shard | None:
    """Return the manifest entry of a shard, or None if the folder has no intact file of the shard.

    In an intact file, the attributes and HDF5's checksums are right. If the folder has a readable
    `index.json`, the hash of the file must also be the hash in `index.json`.
    """
    path = folder / part.name
    if path.is_symlink() or not path.is_file():
        return None
    shard = Shard(**asdict(part), bytes=path.stat().st_size, sha256=hash_file(path))
    with suppress(DataError):  # an `index.json` that is absent or damaged is written at the end
        if shard not in manifest.read_manifest(folder).shards:
            return None
    with suppress(*layout.DAMAGE_ERRORS), layout.open_shard(path) as file:
        if any(layout.find_disagreements(file, build_manifest(job, []), shard)):
            return None  # the arrays are not read, because they may declare any size
        for stored in file.values():
            stored[:]
        return shard
    return None


def build_manifest(job: ShardJob, shards: Sequence[Shard]) -> Manifest:
    """Build the manifest of a data set.

    Args:
        job: The job that made the examples.
        shards: Entries of all shards. The shards of a split are in the order of its examples.
    """
    fingerprint = job.content.fingerprint
    return Manifest(FORMAT, fingerprint, job.content, "pixels", job.fields, tuple(shards))


def run_plan(
    plan: MakingPlan, run_tasks: TaskRunner, on_outcome: Callable[[ShardOutcome], object]
) -> MakingResult:
    """Make missing or damaged shards of a data set; write `index.json` when all are complete.

    After a failure or an interruption, the next run makes the shards that are still missing.

    Args:
        plan: The shards and their folder.
        run_tasks: Makes shards, in this process or on Ray.
        on_outcome: Called with the outcome of each shard.

    Returns:
        The complete shards, the failures, and the exit status of the command.

    Raises:
        UserError: If the folder cannot be created or locked, or if another process fills it.
        DataError: If the folder holds other files, or was begun with another plan.
        Exception: Any error of `run_tasks` except OSError. An OSError is not raised; it is reported
            as a failure in the result.
    """
    result = MakingResult()
    with _hold_folder(plan):
        try:
            # Tasks are ended after an interruption too, before the lock is released.
            with closing(run_tasks(plan)) as outcomes:
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
                f"permissions, or set STORAGE to a folder that all nodes share; then {RERUN_HINT}"
            )
            result.failures[cause] = [INDEX]
    return result


@contextmanager
def _hold_folder(plan: MakingPlan) -> Iterator[None]:
    """Create the folder and hold its lock in a `with` block.

    If the process dies, the lock is released.
    """
    folder = plan.folder
    with ExitStack() as stack:
        try:
            (folder / STATE).mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / STATE / LOCK).open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            check_folder(plan)  # another process may have begun to fill the folder meanwhile
            write_text(folder / STATE / WANTED, plan.identity)
        except BlockingIOError as error:
            raise UserError(
                f"STORAGE={folder}: another process writes to it; wait until it ends, or stop it"
            ) from error
        except OSError as error:
            raise UserError(
                f"STORAGE={folder}: cannot be written, or has no file locks ({error.strerror}); "
                "correct that, or set STORAGE to another folder"
            ) from error
        stack.callback(_remove_temporaries, folder)
        yield


def _remove_temporaries(folder: Path) -> None:
    """Remove the temporary files of killed workers; the caller holds the lock of the folder."""
    for name in ("*.h5", INDEX):
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)
