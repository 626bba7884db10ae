"""What a worker does with one shard, whichever engine it belongs to."""

import errno
import os
import re
import socket
import time
from pathlib import Path

from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.job import Job, Maker
from capsweep.data_prep.making import shard, shared_pages
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.making.work import Outcome, Work
from capsweep.files import sha256_of_file

NUMBER = re.compile(r"errno = (\d+)")  # in what HDF5 says
CURES = {
    errno.ENOSPC: "free space there, or set STORAGE to a folder on a larger disk",
    errno.EDQUOT: "free space of your quota there, or set STORAGE to a folder elsewhere",
    errno.EROFS: "mount it for writing, or set STORAGE to a folder that can be written",
    errno.EACCES: "correct its permissions, or set STORAGE to a folder that can be written",
    errno.EPERM: "correct its permissions, or set STORAGE to a folder that can be written",
    errno.EIO: "the disk or its network fails: see the node's log, or set STORAGE elsewhere",
}
COMMON = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)

# Of the job and the split that this process was last asked about; more would not fit into MEMORY.
_prepared: tuple[object, Maker | None] = (None, None)


def do(job: Job, work: Work) -> Outcome:
    """Keep the shard that is known and whole, make any other.

    Never raises OSError: the outcome has the cause and its cure.
    """
    begun = time.monotonic()
    made, number, cause = None, None, None
    kept = False
    try:
        kept = is_whole(work)
        if kept:
            made = work.known
        else:
            make = maker(job, work.part)
            made = shard.write(work.folder, job, work.part, make, work.gzip)
    except (OSError, RuntimeError) as error:  # h5py raises either for what the disk refuses
        number = number_of(error)
        if number is None:
            raise
        cause = cause_of(work.folder, number)
    seconds = time.monotonic() - begun
    is_common = number in COMMON
    return Outcome(
        work.part, made, made is not None and not kept, _node(), seconds, cause, is_common, number
    )


def is_whole(work: Work) -> bool:
    """Whether the shard lies there as it was recorded. Raises OSError when it cannot be read."""
    path, known = work.folder / work.part.name, work.known
    if known is None:
        return False
    try:
        is_file = path.is_file() and not path.is_symlink()
        return is_file and path.stat().st_size == known.bytes and _has_hash(work, known)
    except FileNotFoundError:
        return False


def _has_hash(work: Work, known: Shard) -> bool:
    return sha256_of_file(work.folder / work.part.name) == known.sha256


def number_of(error: BaseException) -> int | None:
    """The errno of what the operating system refused, also where HDF5 only tells it in words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno
        if found := NUMBER.search(str(cause)):
            return int(found[1])
        cause = cause.__cause__ or cause.__context__
    return None


def cause_of(folder: Path, number: int) -> str:
    """One line: the folder, what the operating system says, the cure."""
    cure = CURES.get(number, "see that it is there and can be written")
    return f"{folder}: {os.strerror(number)}; {cure}; then run the same command again"


def maker(job: Job, part: Part) -> Maker:
    """Prepared once for a split: an engine may bring an equal job with every shard. One that
    brings the examples of its shard serves no other, and has nothing to prepare.
    """
    global _prepared
    given = job.portion(part.split, part.first, part.first + part.examples)
    if given is not job:
        return given.maker(part.split)
    identity = (job.content.fingerprint, tuple(job.fields()), part.split)
    before, prepared = _prepared
    if prepared is None or before != identity:
        prepared, _prepared = None, (None, None)  # let go of, before the next is made
        prepared = job.maker(part.split)
        shared_pages.let_go()  # of what it was prepared from
        _prepared = (identity, prepared)
    return prepared


def _node() -> str:
    return socket.gethostname()
