"""Jobs of which workers do something in the middle of a shard. Workers of Ray import this module:
see `making_importable`."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import processes
import pytest

from capsweep.shards.layout import Maker, ShardJob
from capsweep.shards.manifest import DataSetContent, Fields

Fault = Literal["kill", "wait"]


@contextmanager
def making_importable() -> Iterator[None]:
    """Ray's processes that are started within find what tests find."""
    with pytest.MonkeyPatch.context() as patch:
        here = str(Path(__file__).parent)
        patch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
        yield


@dataclass(frozen=True)
class Disturbed:
    """The examples of another job. Each worker that is to make one of the examples `at` has the
    fault, `times` times in all.

    kill: it kills itself. wait: it waits until there is a note `go`. notes: a folder that workers
    write to.
    """

    job: ShardJob
    notes: Path
    at: tuple[int, ...]
    fault: Fault
    times: int = 1

    @property
    def content(self) -> DataSetContent:
        return self.job.content

    def list_fields(self) -> Fields:
        return self.job.list_fields()

    def build_maker(self, split: str) -> Maker:
        make = self.job.build_maker(split)

        def make_or_fail(start: int, stop: int) -> Mapping[str, np.ndarray]:
            if any(start <= k < stop for k in self.at) and len(self.list_victims()) < self.times:
                (self.notes / f"{os.getpid()}-{_find_node()}-{time.monotonic_ns()}").touch()
                self._have_fault()
            return make(start, stop)

        return make_or_fail

    def list_victims(self) -> list[tuple[int, str]]:
        """The process and Ray's node of each fault, in their order."""
        told = [note.name.split("-") for note in self.notes.glob("*-*-*")]
        return [(int(pid), node) for pid, node, _ in sorted(told, key=lambda note: int(note[2]))]

    def let_go(self) -> None:
        """Let all that wait go on."""
        (self.notes / "go").touch()

    def _have_fault(self) -> None:
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        processes.wait_until((self.notes / "go").exists, 60)


def _find_node() -> str:
    import ray

    return ray.get_runtime_context().get_node_id()
