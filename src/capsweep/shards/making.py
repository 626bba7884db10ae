"""Makes what is missing of a data set of shards; `index.json` is written last."""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from capsweep.errors import DataError, UserError
from capsweep.shards import manifest
from capsweep.shards.job import Job, Maker
from capsweep.shards.making_plan import (
    MADE,
    STATE,
    WANTED,
    MakingPlan,
    check_folder,
    hash_identity,
    list_temporary_files,
    read_recorded,
)
from capsweep.shards.manifest import Shard
from capsweep.shards.write import Part, write_shard
from capsweep.storage.files import hash_file, write_json

FINISHED, INCOMPLETE, INTERRUPTED = 0, 1, 130  # exit statuses
LOCK = "lock"
# What the others of a folder would meet as well, and its cure.
COMMON: Mapping[int, str] = {
    errno.ENOSPC: "free space there, or set STORAGE to a folder on a larger disk",
    errno.EDQUOT: "free space of your quota there, or set STORAGE to a folder elsewhere",
    errno.EROFS: "mount it for writing, or set STORAGE to a folder that can be written",
    errno.EACCES: "correct its permissions, or set STORAGE to a folder that can be written",
    errno.EPERM: "correct its permissions, or set STORAGE to a folder that can be written",
}


@dataclass(frozen=True)
class ShardTask:
    """A part of a data set and its folder; `known` is its shard as it was recorded before."""

    folder: Path
    part: Part
    known: Shard | None = None


@dataclass(frozen=True)
class ShardOutcome:
    """What became of a task: a shard that was made now or found whole, or the cause of a failure.

    is_common: the other shards of this folder would fail alike, so that no more are begun.
    """

    part: Part
    shard: Shard | None = None
    is_made: bool = False
    cause: str | None = None
    is_common: bool = False


class Engine(Protocol):
    """Runs tasks."""

    def count_cores(self) -> int:
        """How many tasks run at once. Raises UserError where there is no cluster."""
        ...

    def run(self, job: Job, tasks: Sequence[ShardTask]) -> Iterator[ShardOutcome]:
        """The outcomes, as tasks end. Closing the iterator ends what runs."""
        ...


class LocalEngine:
    """One shard after the other in this process, without Ray."""

    def count_cores(self) -> int:
        """One."""
        return 1

    def run(self, job: Job, tasks: Sequence[ShardTask]) -> Iterator[ShardOutcome]:
        """In their order."""
        for task in tasks:
            yield run_task(job, task)


@dataclass
class MakingResult:
    """What became of a data set; failures: names of shards, by cause."""

    total: int
    status: int = INCOMPLETE
    made: int = 0
    kept: int = 0
    examples: int = 0
    seconds: float = 0.0
    failures: dict[str, list[str]] = field(default_factory=dict)


def run_plan(
    plan: MakingPlan, engine: Engine, on_outcome: Callable[[ShardOutcome], None] = lambda _: None
) -> MakingResult:
    """Make what is missing, then write `index.json`. What fails or is interrupted stays missing.

    Raises UserError when the folder cannot be written or another process fills it.
    """
    result, begun = MakingResult(len(plan.parts)), time.monotonic()
    with _hold_folder(plan):
        try:
            shards = _make_shards(plan, engine, result, on_outcome)
            if len(shards) == result.total:
                _write_manifest(plan, [shards[part.name] for part in plan.parts])
                result.status = FINISHED
        except KeyboardInterrupt:
            result.status = INTERRUPTED
        except OSError as error:
            result.failures.setdefault(describe_error(plan.folder, error), []).append("index.json")
    result.seconds = time.monotonic() - begun
    return result


def _write_manifest(plan: MakingPlan, shards: Sequence[Shard]) -> None:
    """Write `index.json`; one that says the same stays. Raises OSError."""
    wanted = plan.manifest(shards)
    try:
        is_written = manifest.read_manifest(plan.folder) == wanted
    except DataError:  # none yet, or altered
        is_written = False
    if not is_written:
        manifest.write_manifest(plan.folder, wanted)


def _make_shards(
    plan: MakingPlan,
    engine: Engine,
    result: MakingResult,
    on_outcome: Callable[[ShardOutcome], None],
) -> dict[str, Shard]:
    recorded = read_recorded(plan)
    tasks = [ShardTask(plan.folder, part, recorded.get(part.name)) for part in plan.parts]
    tasks.sort(key=lambda task: task.known is None)  # a shard that is no longer whole is soon known
    shards: dict[str, Shard] = {}
    # Closed at an interruption too, before the folder is left: then nothing runs any more.
    with closing(engine.run(plan.job, tasks)) as outcomes:  # pyright: ignore[reportArgumentType]
        for outcome in outcomes:
            if outcome.shard is not None:
                if outcome.is_made:
                    _record_shard(plan, outcome.shard)
                shards[outcome.part.name] = outcome.shard
                result.made += outcome.is_made
                result.kept += not outcome.is_made
                result.examples += outcome.part.examples if outcome.is_made else 0
            elif outcome.cause is not None:
                result.failures.setdefault(outcome.cause, []).append(outcome.part.name)
            on_outcome(outcome)
            if outcome.is_common:
                break
    return shards


def run_task(job: Job, task: ShardTask) -> ShardOutcome:
    """Keep a recorded shard that is whole, make any other.

    What the disk refuses to all shards alike is an outcome; another OSError is raised.
    """
    try:
        if _is_whole(task):
            return ShardOutcome(task.part, task.known)
        make = prepare_maker(job, task.part.split)
        return ShardOutcome(task.part, write_shard(task.folder, job, task.part, make), True)
    except OSError as error:
        if error.errno not in COMMON:
            raise
        return ShardOutcome(task.part, cause=describe_error(task.folder, error), is_common=True)


# Of the job and split that this process made last; more would take memory.
_prepared: tuple[object, Maker | None] = (None, None)


def prepare_maker(job: Job, split: str) -> Maker:
    """The maker of a split, prepared once in a process."""
    global _prepared
    identity = (job.content.fingerprint, tuple(job.fields()), split)
    if _prepared[1] is None or _prepared[0] != identity:
        _prepared = (None, None)  # let go of, before the next is made
        _prepared = (identity, job.maker(split))
    maker = _prepared[1]
    assert maker is not None
    return maker


def _is_whole(task: ShardTask) -> bool:
    path, known = task.folder / task.part.name, task.known
    if known is None or path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size == known.bytes and hash_file(path) == known.sha256


def describe_error(folder: Path, error: OSError) -> str:
    """One line: the folder, what the operating system says, the cure."""
    cure = COMMON.get(error.errno or 0, "see that it is there and can be written")
    return f"{folder}: {os.strerror(error.errno or 0)}; {cure}; then run the same command again"


def _record_shard(plan: MakingPlan, shard: Shard) -> None:
    line = json.dumps([hash_identity(plan), asdict(shard)])
    with (plan.folder / STATE / MADE).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")  # the last line may be a part of one


@contextmanager
def _hold_folder(plan: MakingPlan) -> Iterator[None]:
    """Make the folder, and hold its lock for the time of a block: a dead process holds none."""
    folder = plan.folder
    try:
        (folder / STATE).mkdir(parents=True, exist_ok=True)
        lock = (folder / STATE / LOCK).open("a+b", buffering=0)
    except OSError as error:
        raise _unwritable_error(folder, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read().decode(errors="replace") or "another process"
            raise UserError(
                f"STORAGE={folder}: is being filled by {owner}; wait for its end, or end it"
            ) from error
        except OSError as error:
            raise UserError(
                f"STORAGE={folder}: its file system has no locks ({error.strerror}), so that two "
                "commands could fill it at once; mount it with them, or set STORAGE to another one"
            ) from error
        check_folder(plan)  # another process may have begun meanwhile
        try:
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            remove_temporary_files(folder)
            state = {"identity": plan.identity(), "command": plan.command}
            write_json(folder / STATE / WANTED, state)
        except OSError as error:
            raise _unwritable_error(folder, error) from error
        try:
            yield
        finally:
            remove_temporary_files(folder)


def remove_temporary_files(folder: Path) -> None:
    """Remove what killed workers left; the caller alone fills the folder."""
    for path in list_temporary_files(folder):
        path.unlink(missing_ok=True)


def _unwritable_error(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"STORAGE={folder}: cannot be written ({error.strerror}); correct that, or set STORAGE to "
        "a folder that can be written"
    )
