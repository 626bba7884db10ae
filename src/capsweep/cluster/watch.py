"""Attached to a job: what it prints, to its end, over connections that come and go."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from capsweep.cluster.client import Jobs, SweepJob, UnreachableError
from capsweep.errors import ConfigError

PATIENCE = 300.0  # seconds without an answer, after which the watcher gives up, not the sweep
QUIET = 10.0  # seconds without a line, after which the job is asked for
AGAIN = 2.0  # seconds between two tries to connect


@dataclass
class Watch:
    """write: takes text as it was printed. say: takes a line of ours. seen: characters so far."""

    jobs: Jobs
    write: Callable[[str], object]
    say: Callable[[str], object]
    patience: float = PATIENCE
    seen: int = 0

    def to_the_end(self, job: SweepJob) -> SweepJob:
        """Print all that the job prints; returns it ended. Raises UnreachableError when nobody
        answers for so long, and KeyboardInterrupt at Ctrl-C: the sweep goes on in both cases.
        """
        lost: float | None = None
        while True:
            try:
                if lost is None:
                    asyncio.run(self._follow(job.id))
                now = self.jobs.of(job.id)
            except UnreachableError as error:
                lost = self._wait(job, lost, error)
                continue
            if now.has_ended:
                self._rest(job)
                return now
            if lost is not None:
                self.say("connected again")
                lost = None
            time.sleep(AGAIN / 4)

    def _wait(self, job: SweepJob, lost: float | None, error: UnreachableError) -> float:
        if lost is None:
            lost = time.monotonic()
            self.say(
                f"the connection to {self.jobs.address} is lost; the sweep goes on there; trying "
                f"again for {self.patience:.0f} s"
            )
        elif time.monotonic() - lost > self.patience:
            raise UnreachableError(
                f"{self.jobs.address} does not answer; the sweep goes on there: open the tunnel "
                f"again, then `capsweep attach {job.id}`"
            ) from error
        time.sleep(AGAIN)
        return lost

    async def _follow(self, submission_id: str) -> None:
        lines = self.jobs.follow(submission_id)
        skip = self.seen  # the log comes from its beginning each time
        async for text in self._or_ended(lines, submission_id):
            skipped, skip = text[skip:], max(0, skip - len(text))
            self._show(skipped)

    async def _or_ended(self, lines: AsyncIterator[str], submission_id: str) -> AsyncIterator[str]:
        """The lines; asks for the job when none comes, since a dead connection says nothing."""
        waiting = asyncio.ensure_future(anext(lines, None))
        try:
            while True:
                done, _ = await asyncio.wait([waiting], timeout=QUIET)
                if not done:
                    if (await asyncio.to_thread(self.jobs.of, submission_id)).has_ended:
                        return
                    continue
                text = waiting.result()
                if text is None:
                    return
                yield text
                waiting = asyncio.ensure_future(anext(lines, None))
        finally:
            waiting.cancel()

    def _rest(self, job: SweepJob) -> None:
        """Ray follows a log once a second, and its end may come after the job's."""
        try:
            self._show(self.jobs.log(job.id)[self.seen :])
        except ConfigError:
            return  # a job that never started has no log

    def _show(self, text: str) -> None:
        self.seen += len(text)
        if text:
            self.write(text)
