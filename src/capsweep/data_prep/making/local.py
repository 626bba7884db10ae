"""In this process, one shard after the other, with no Ray needed."""

from collections.abc import Callable, Iterator, Sequence

from capsweep.data_prep.job import Job
from capsweep.data_prep.making import worker
from capsweep.data_prep.making.work import Outcome, Work

MEMORY = 800_000_000  # bytes of this process, which composed the configuration too


class Local:
    """The engine of `--executor local`."""

    def cores(self) -> int:
        """One at once."""
        return 1

    def run(
        self, job: Job, works: Sequence[Work], should_stop: Callable[[], bool]
    ) -> Iterator[Outcome]:
        """In their order."""
        for work in works:
            if should_stop():
                return
            yield worker.do(job, work)
