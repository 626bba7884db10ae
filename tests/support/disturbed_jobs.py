"""Jobs whose workers die in the middle of a shard. Workers of Ray import this module: see
`making_importable`."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from capsweep.shards.layout import Maker, ShardJob
from capsweep.shards.manifest import DataSetContent, Fields


@contextmanager
def making_importable() -> Iterator[None]:
    """Ray's processes that are started within find what tests find."""
    with pytest.MonkeyPatch.context() as patch:
        here = str(Path(__file__).parent)
        patch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
        yield


@dataclass(frozen=True)
class Disturbed:
    """The examples of another job. Each worker that is to make example `at` kills itself, `times`
    times in all, of each of which there is a file in `notes`.
    """

    job: ShardJob
    notes: Path
    at: int
    times: int = 1

    @property
    def content(self) -> DataSetContent:
        return self.job.content

    def list_fields(self) -> Fields:
        return self.job.list_fields()

    def build_maker(self, split: str) -> Maker:
        make = self.job.build_maker(split)

        def make_or_die(start: int, stop: int) -> Mapping[str, np.ndarray]:
            if start <= self.at < stop and len(list(self.notes.iterdir())) < self.times:
                (self.notes / str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return make(start, stop)

        return make_or_die
