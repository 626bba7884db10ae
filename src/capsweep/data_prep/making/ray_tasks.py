"""Ray: one task for each shard, as many at once as the cluster has cores for.

Ray itself tries nothing again: what a node may be to blame for is done again here, on another node
where there is one, and told. Few works are with Ray at a time, however many there are, so that a
cluster that is to stop stops soon.
"""

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from capsweep import ray_start, terminal
from capsweep.config import shipped
from capsweep.data_prep.job import Job
from capsweep.data_prep.making import ray_cluster
from capsweep.data_prep.making.ray_cluster import Place
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.making.work import MEMORY, Outcome, Work
from capsweep.errors import UserError
from capsweep.ray_start import exceptions, ray

TRIES = 3
FULL = (errno.ENOSPC, errno.EDQUOT)  # for every node alike
POLL, LOOK, SEEN, ENDING = 0.2, 5.0, 60.0, 10.0  # seconds; see where they are used


@dataclass
class Try:
    """A work to be done: how often it was begun, the nodes that failed it, where it runs now."""

    work: Work
    count: int = 0
    failed_on: list[str] = field(default_factory=list)
    place: Place | None = None


def _told(text: str) -> None:
    terminal.line(terminal.console(stderr=True), text)


@dataclass(frozen=True)
class RayTasks:
    """The engine of `--executor ray`.

    address: of a running cluster; None: a Ray of this machine that ends with the run. tell: is
    given lines on what the user may want to know while it runs. seen_within: seconds after which a
    shard that a worker wrote must be seen here; what is shared by NFS may take half a minute.
    """

    address: str | None = None
    tell: Callable[[str], None] = _told
    seen_within: float = SEEN

    def cores(self) -> int:
        """Of the cluster, or of this machine. Raises UserError where there is no cluster."""
        if self.address is None:
            return len(os.sched_getaffinity(0))
        with self._connected():
            return max(1, ray_cluster.cores())

    def run(
        self, job: Job, works: Sequence[Work], should_stop: Callable[[], bool]
    ) -> Iterator[Outcome]:
        """In the order in which they end. Whatever ends the run, nothing of it runs on."""
        with shipped.staged_for(self.address) as package, self._connected(package):
            run = _Run(job, works, should_stop, self)
            try:
                yield from run.outcomes()
            finally:
                run.cancel()

    def _connected(self, package: Any = None) -> Any:
        cores = None if self.address else self.cores()
        return ray_start.connected(self.address, cores, package=package)


class _Run:
    """Works on their way: those that wait, run, or lie somewhere where they are not seen yet."""

    def __init__(
        self, job: Job, works: Sequence[Work], should_stop: Callable[[], bool], engine: RayTasks
    ) -> None:
        self.job, self.should_stop, self.engine = job, should_stop, engine
        self.put: tuple[Job, Any] | None = None
        self.waiting = deque(Try(work) for work in works)
        self.running: dict[Any, Try] = {}
        self.withdrawn: list[Any] = []
        self.unseen: list[tuple[float, Work, Outcome]] = []
        self.looked, self.room, self.has_told = -LOOK, 0, False

    def outcomes(self) -> Iterator[Outcome]:
        """Of all that are begun."""
        while self.waiting or self.running or self.unseen:
            if self.should_stop():
                self._withdraw()
            self._look_at_the_cluster()
            while self.waiting and len(self.running) < self.room:
                self._begin(self.waiting.popleft())
            for generator in self._ready():
                yield from self._heard(generator)
            yield from self._seen()

    def cancel(self) -> None:
        """End what runs; a worker that is ended so takes its temporary file away."""
        for generator in list(self.running):
            self._take_back(generator)
        ended = [generator.completed() for generator in self.withdrawn]
        if ended:
            ray.wait(ended, num_returns=len(ended), timeout=ENDING)

    def _withdraw(self) -> None:
        """Have nothing begin any more."""
        self.waiting.clear()
        for generator, one in list(self.running.items()):
            if one.place is None:
                self._take_back(generator)

    def _take_back(self, generator: Any) -> None:
        ray.cancel(generator)
        del self.running[generator]
        self.withdrawn.append(generator)

    def _look_at_the_cluster(self) -> None:
        """Every LOOK seconds, since it may grow or shrink: twice as many works as cores are given.

        Works that were to run on another node, and there is none any more, run on any.
        """
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        self.room = 2 * max(1, ray_cluster.cores())
        if not ray_cluster.nodes() and not self.has_told:
            lack = f"no node has a core and {MEMORY / 1e6:.0f} MB of memory to give"
            if self.engine.address is None:
                raise UserError(f"{lack}; free some, or use --executor local")
            self.has_told = True
            self.engine.tell(f"{self.engine.address}: {lack}; waiting for one")
        for generator, one in list(self.running.items()):
            if one.place is None and one.failed_on and not _others(one):
                self._take_back(generator)
                self._begin(one)

    def _begin(self, one: Try) -> None:
        avoided = one.failed_on if _others(one) else []
        one.place = None
        reference = self._reference(one.work.part)
        self.running[ray_cluster.begin(reference, one.work, avoided)] = one

    def _reference(self, part: Part) -> Any:
        """What a worker needs of the job, where its nodes find it; all of it is put there once."""
        given = self.job.portion(part.split, part.first, part.first + part.examples)
        if self.put is None or self.put[0] is not given:
            self.put = given, ray.put(given)
        return self.put[1]

    def _ready(self) -> list[Any]:
        if not self.running:
            time.sleep(POLL)
            return []
        generators = list(self.running)
        ray.wait(generators, timeout=POLL, fetch_local=False)
        ready, _ = ray.wait(generators, num_returns=len(generators), timeout=0, fetch_local=False)
        return ready

    def _heard(self, generator: Any) -> Iterator[Outcome]:
        """What a task says, or Ray of it."""
        one = self.running[generator]
        try:
            said = cast(Place | Outcome, ray.get(next(generator)))
        except exceptions.RayTaskError as error:
            del self.running[generator]
            yield from self._raised(one, error)
        except exceptions.RayError as error:
            del self.running[generator]
            yield from self._failed(
                one, _outcome(one, ray_cluster.lost(error, one.place)), may_succeed=True
            )
        else:
            if isinstance(said, Place):
                one.place, one.count = said, one.count + 1
                return
            del self.running[generator]
            if said.shard is not None:
                self.unseen.append((time.monotonic() + self.engine.seen_within, one.work, said))
            else:
                elsewhere = not said.is_common or bool(_others(one))
                yield from self._failed(one, said, elsewhere and said.number not in FULL)

    def _raised(self, one: Try, error: Any) -> Iterator[Outcome]:
        """An error of the code or the data is the same everywhere; some may be the node's."""
        is_nodes = isinstance(error.cause, MemoryError | ImportError | exceptions.RayError)
        outcome = replace(_outcome(one, ray_cluster.raised(error.cause)), is_common=not is_nodes)
        if not is_nodes and not isinstance(error.cause, UserError):
            self.engine.tell(str(error))  # the traceback
        yield from self._failed(one, outcome, may_succeed=is_nodes)

    def _failed(self, one: Try, outcome: Outcome, may_succeed: bool) -> Iterator[Outcome]:
        one.count = max(one.count, 1)
        if one.place and one.place.node not in one.failed_on:
            one.failed_on.append(one.place.node)
        if not may_succeed or one.count >= TRIES:
            yield outcome
        elif not self.should_stop():
            where = "another node" if _others(one) else "any node, since no other has room"
            self.engine.tell(
                f"{one.work.part.name}: failed on {outcome.node} ({outcome.cause}); tried again on "
                f"{where}, {one.count + 1} of {TRIES} times"
            )
            self.waiting.appendleft(one)

    def _seen(self) -> Iterator[Outcome]:
        """Of shards that a worker wrote, those that are seen here, or should have been by now."""
        if not self.unseen:
            return
        waiting, self.unseen = self.unseen, []
        for until, work, outcome in waiting:
            if _is_here(work, outcome):
                yield outcome
            elif time.monotonic() < until:
                self.unseen.append((until, work, outcome))
            else:
                cause = (
                    f"{work.folder}: {outcome.node} wrote it where this machine does not see it; "
                    "STORAGE must be a folder that all nodes share"
                )
                yield replace(outcome, shard=None, made=False, cause=cause, is_common=True)


def _is_here(work: Work, outcome: Outcome) -> bool:
    assert outcome.shard is not None
    try:
        os.close(os.open(work.folder, os.O_RDONLY))  # has NFS ask its server anew
        return (work.folder / work.part.name).stat().st_size == outcome.shard.bytes
    except OSError:
        return False


def _others(one: Try) -> list[str]:
    failed = one.failed_on
    return [node for node in ray_cluster.nodes() if node not in failed] if failed else []


def _outcome(one: Try, cause: str) -> Outcome:
    host = one.place.host if one.place else "no node"
    return Outcome(one.work.part, None, False, host, 0.0, cause)
