"""What a worker is asked to do with one shard, and what came of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.job import Job
from capsweep.data_prep.making.shard import Part

MEMORY = 500_000_000  # bytes that a worker's process takes at most, whatever the number of examples


@dataclass(frozen=True)
class Work:
    """One shard of a folder.

    known: what was recorded when it was made before, None: never made. gzip: level of compression.
    """

    folder: Path
    part: Part
    known: Shard | None = None
    gzip: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    shard: as it now lies there; None: it does not, and `cause` says why. made: written now, and not
    found whole. node: the host that did it. seconds: it took there. cause: one line with the cure
    and without the file's name, since equal causes are counted together. is_common: the others of
    this folder would fail alike, so no more of them are to be begun. number: the errno, where the
    operating system refused.
    """

    part: Part
    shard: Shard | None
    made: bool
    node: str
    seconds: float
    cause: str | None = None
    is_common: bool = False
    number: int | None = None


class Engine(Protocol):
    """Does works, each once or, after a fault that may be a node's, again on another one."""

    def cores(self) -> int:
        """How many works are done at once; a cluster is asked. Raises UserError where none is."""
        ...

    def run(
        self, job: Job, works: Sequence[Work], should_stop: Callable[[], bool]
    ) -> Iterator[Outcome]:
        """One outcome for every work that was begun, in the order in which they end.

        No more are begun once `should_stop()`. Raises KeyboardInterrupt at Ctrl-C, when nothing of
        it runs any more.
        """
        ...
