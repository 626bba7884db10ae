"""Makes what is missing of a data set of shards; `index.json` is written last.

A shard is a pure function of its job and part, and has its name when it is whole. So one that opens
as what it should be is kept, and anything else is made again.
"""

import errno
import fcntl
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from capsweep.errors import DataError, UserError
from capsweep.shards import manifest
from capsweep.shards.layout import (
    DAMAGE_ERRORS,
    ShardJob,
    find_disagreements,
    open_shard,
    write_shard,
)
from capsweep.shards.making_plan import MakingPlan, check_folder
from capsweep.shards.manifest import INDEX, STATE, WANTED, Manifest, Shard, ShardPart
from capsweep.storage.files import hash_file, write_json

FINISHED, INCOMPLETE, INTERRUPTED = 0, 1, 130  # exit statuses
LOCK = "lock"
AGAIN = "run the same command again"


@dataclass(frozen=True)
class ShardTask:
    """A part of a data set and its folder; `known` is its shard in an earlier `index.json`."""

    folder: Path
    part: ShardPart
    known: Shard | None = None


@dataclass(frozen=True)
class ShardOutcome:
    """What became of a task: a shard that was made now or was whole, or the cause of a failure.

    is_common: the other shards of this folder would fail alike, so that no more are begun.
    """

    part: ShardPart
    shard: Shard | None = None
    is_made: bool = False
    cause: str = ""
    is_common: bool = False


# The outcomes of tasks, as they end. Closing the iterator ends what runs.
TaskRunner: TypeAlias = Callable[[ShardJob, Sequence[ShardTask]], Generator[ShardOutcome]]


@dataclass
class MakingResult:
    """What became of a data set.

    status: of the command; outcomes: of the tasks that ended; fault: why `index.json` could not be
    written.
    """

    status: int = INCOMPLETE
    outcomes: list[ShardOutcome] = field(default_factory=list)
    fault: str = ""

    @property
    def shards(self) -> dict[str, Shard]:
        """The shards that are whole, by name."""
        return {one.part.name: one.shard for one in self.outcomes if one.shard is not None}

    @property
    def failures(self) -> dict[str, list[str]]:
        """Names of files that are missing, by cause."""
        failures = {self.fault: [INDEX]} if self.fault else {}
        for outcome in self.outcomes:
            if outcome.shard is None:
                failures.setdefault(outcome.cause, []).append(outcome.part.name)
        return failures


def run_locally(job: ShardJob, tasks: Sequence[ShardTask]) -> Generator[ShardOutcome]:
    """Make one shard after the other in this process, without Ray."""
    for task in tasks:
        try:
            yield run_task(job, task)
        except OSError as error:
            yield describe_failure(task, error)


def run_task(job: ShardJob, task: ShardTask) -> ShardOutcome:
    """Keep a shard that is whole, make any other. Raises OSError."""
    if not (task.folder / STATE / WANTED).is_file():
        raise FileNotFoundError(errno.ENOENT, "this node does not see the driver's folder")
    if (shard := _find_whole(job, task)) is not None:
        return ShardOutcome(task.part, shard)
    make = job.build_maker(task.part.split)
    return ShardOutcome(task.part, write_shard(task.folder, job, task.part, make), is_made=True)


def _find_whole(job: ShardJob, task: ShardTask) -> Shard | None:
    """Return the shard that is there already, if its hash, or else HDF5's checksums, prove it."""
    path = task.folder / task.part.name
    if path.is_symlink() or not path.is_file():
        return None
    shard = Shard(**asdict(task.part), bytes=path.stat().st_size, sha256=hash_file(path))
    if task.known is not None:
        return shard if shard == task.known else None
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
    fields = {field.name: (field.dtype, field.shape) for field in job.list_fields()}
    return Manifest(job.content, "pixels", fields, tuple(shards))


def describe_failure(task: ShardTask, error: BaseException) -> ShardOutcome:
    """Return the outcome of a task that raised: an error of the disk would meet other shards as
    well.
    """
    if isinstance(error, OSError):
        cause = (
            f"{task.folder}: {error.strerror or error}; free space there, correct its permissions, "
            f"or set STORAGE to another folder that all nodes share; then {AGAIN}"
        )
        return ShardOutcome(task.part, cause=cause, is_common=True)
    line = (str(error).splitlines() or [""])[0]
    return ShardOutcome(task.part, cause=f"{type(error).__name__}: {line}; {AGAIN}")


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
            known = _read_known(plan)
            tasks = [ShardTask(plan.folder, part, known.get(part)) for part in plan.parts]
            # Closed at an interruption too, before the folder is left: then nothing runs any more.
            with closing(run_tasks(plan.job, tasks)) as outcomes:
                for outcome in outcomes:
                    result.outcomes.append(outcome)
                    on_outcome(outcome)
                    if outcome.is_common:
                        break
            shards = result.shards
            if len(shards) == len(plan.parts):
                whole = build_manifest(plan.job, [shards[part.name] for part in plan.parts])
                manifest.write_manifest(plan.folder, whole)
                result.status = FINISHED
        except KeyboardInterrupt:
            result.status = INTERRUPTED
        except OSError as error:
            result.fault = f"{plan.folder}: {error.strerror}; {AGAIN}"
    return result


def _read_known(plan: MakingPlan) -> dict[ShardPart, Shard]:
    """Return the shards of an `index.json` of this data set."""
    try:
        stored = manifest.read_manifest(plan.folder)
    except DataError:  # none yet, or altered: it is written anew at the end
        return {}
    # Of the shards of another data set, copied here since, the hashes would be right too.
    if replace(stored, shards=()) != build_manifest(plan.job, []):
        return {}
    return {ShardPart(s.name, s.split, s.first, s.examples): s for s in stored.shards}


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
            write_json(folder / STATE / WANTED, {"identity": plan.identity})
            _remove_temporaries(plan)
        except BlockingIOError as error:
            raise UserError(
                f"STORAGE={folder}: is being filled by another process; wait for its end, or end it"
            ) from error
        except OSError as error:
            raise UserError(
                f"STORAGE={folder}: cannot be written, or has no locks ({error.strerror}); "
                "correct that, or set STORAGE to another folder"
            ) from error
        stack.callback(_remove_temporaries, plan)
        yield


def _remove_temporaries(plan: MakingPlan) -> None:
    """Remove what killed workers left; the caller alone fills the folder."""
    names = {INDEX, *(part.name for part in plan.parts)}
    for path in plan.folder.glob(".*.*.tmp"):
        if path.name[1:].rsplit(".", 2)[0] in names:
            path.unlink(missing_ok=True)
