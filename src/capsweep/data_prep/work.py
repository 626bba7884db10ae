"""What a worker is asked to do with one shard, and what came of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.job import Job
from capsweep.data_prep.shard import Part


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

    shard: as it now lies there; None: it does not, and `cause` says why in one line. made: written
    now, and not found whole. node: the host that did it. seconds: it took there.
    """

    part: Part
    shard: Shard | None
    made: bool
    node: str
    seconds: float
    cause: str | None = None


class Engine(Protocol):
    """Does works, each once or, after a fault that may be a node's, again on another one."""

    def run(
        self, job: Job, works: Sequence[Work], should_stop: Callable[[], bool]
    ) -> Iterator[Outcome]:
        """One outcome for every work that was begun, in the order in which they end."""
        ...
