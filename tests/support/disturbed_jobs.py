"""Jobs whose workers die in the middle of a shard. Workers of Ray import this module: see
`making_importable`."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from capsweep.shards.layout import Maker, ShardJob


@contextmanager
def making_importable() -> Iterator[None]:
    """Ray's processes that are started within find what tests find."""
    with pytest.MonkeyPatch.context() as patch:
        here = str(Path(__file__).parent)
        patch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
        yield


def disturb(job: ShardJob, notes: Path, at: int, times: int = 1) -> ShardJob:
    """The same examples. Each worker that is to make example `at` kills itself, `times` times in
    all, of each of which there is a file in `notes`.
    """
    return replace(job, build_maker=partial(_build_disturbed, job, notes, at, times))


def _build_disturbed(job: ShardJob, notes: Path, at: int, times: int, split: str) -> Maker:
    make = job.build_maker(split)

    def make_or_die(start: int, stop: int) -> Mapping[str, np.ndarray]:
        if start <= at < stop and len(list(notes.iterdir())) < times:
            (notes / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return make(start, stop)

    return make_or_die
