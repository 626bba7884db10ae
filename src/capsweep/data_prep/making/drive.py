"""Makes what is missing of a data set, and says what became of it."""

import signal
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace

from rich.console import Console

from capsweep.data.shards import manifest
from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.job import Job
from capsweep.data_prep.making import folder, leftovers, worker
from capsweep.data_prep.making.folder import Held
from capsweep.data_prep.making.plan import Plan
from capsweep.data_prep.making.progress import ShardProgress
from capsweep.data_prep.making.work import Engine, Outcome, Work

FINISHED, INCOMPLETE, INTERRUPTED = 0, 1, 130  # exit statuses


@dataclass
class Ended:
    """What became of a data set.

    status: of the command. made, kept: shards. total: shards there should be. failures: what is
    missing, by cause. examples: of the shards made. seconds: of all.
    """

    total: int
    status: int = INCOMPLETE
    made: int = 0
    kept: int = 0
    examples: int = 0
    seconds: float = 0.0
    failures: dict[str, list[str]] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Shards that are not there, or not known to be."""
        return self.total - self.made - self.kept


def run(job: Job, plan: Plan, engine: Engine, console: Console) -> Ended:
    """Make what is missing, then write `index.json`; what fails or is interrupted stays missing.

    Raises UserError when the folder cannot be written or another process fills it, DataError when
    it holds something else.
    """
    ended, begun = Ended(len(plan.wanted.parts)), time.monotonic()
    with folder.held(plan.place, plan.wanted) as mine:
        try:
            with terminated_like_ctrl_c():
                shards = _make(job, plan, engine, mine, console, ended)
            if len(shards) == ended.total:
                _finish(mine, shards, ended)
        except KeyboardInterrupt:
            ended.status = INTERRUPTED
        finally:
            with suppress(OSError):  # the next command tries again
                leftovers.remove(plan.place)  # of workers that were killed
    ended.seconds = time.monotonic() - begun
    return ended


def _make(
    job: Job, plan: Plan, engine: Engine, mine: Held, console: Console, ended: Ended
) -> dict[str, Shard]:
    """Shards that are there, by name."""
    known = mine.known()
    works = [
        Work(plan.place, part, known.get(part.name), plan.wanted.gzip) for part in plan.wanted.parts
    ]
    works.sort(key=lambda work: work.known is None)  # what is no more whole is soon told
    shards: dict[str, Shard] = {}
    progress = ShardProgress(console, works, (plan.rate or 1.0) * plan.cores)
    # Closed at an interruption too, before the folder is left: then nothing runs any more.
    with progress, closing(_outcomes(engine, job, works)) as outcomes:
        for outcome in outcomes:
            outcome = _recorded(mine, outcome)
            if outcome.shard is not None:
                shards[outcome.part.name] = outcome.shard
            elif outcome.cause is not None:
                ended.failures.setdefault(outcome.cause, []).append(outcome.part.name)
            ended.made += outcome.made
            ended.examples += outcome.part.examples if outcome.made else 0
            ended.kept += outcome.shard is not None and not outcome.made
            progress.ended(outcome)
    return shards


def _outcomes(engine: Engine, job: Job, works: Sequence[Work]) -> Generator[Outcome, None, None]:
    """Of the engine; after a fault that all would have, nothing more is begun."""
    common: list[str] = []
    for outcome in engine.run(job, works, lambda: bool(common)) if works else ():
        yield outcome
        if outcome.is_common and outcome.cause is not None:
            common.append(outcome.cause)


def _recorded(mine: Held, outcome: Outcome) -> Outcome:
    """The outcome; where it cannot be remembered, the shard is as good as missing."""
    if not outcome.made or outcome.shard is None:
        return outcome
    try:
        mine.record(outcome.shard)
    except OSError as error:
        cause = worker.cause_of(mine.folder, error.errno or 0)
        return replace(outcome, shard=None, made=False, cause=cause, is_common=True)
    return outcome


def _finish(mine: Held, shards: Mapping[str, Shard], ended: Ended) -> None:
    try:
        mine.finish([shards[part.name] for part in mine.wanted.parts])
        ended.status = FINISHED
    except OSError as error:
        ended.failures[worker.cause_of(mine.folder, error.errno or 0)] = [manifest.INDEX]


@contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """What a scheduler of a cluster sends is an interruption too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
