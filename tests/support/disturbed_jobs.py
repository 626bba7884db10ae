"""A job of digits whose workers meet with faults in the middle of a shard; jobs of Ray's workers
must be of a module that they can import."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from capsweep.data.shards.layout import Field
from capsweep.data.shards.manifest import Content
from capsweep.data_prep.job import Job, Maker

Fault = Literal["kill", "wait", "error"]


@dataclass(frozen=True)
class Disturbed:
    """The examples of `job`; each worker that is to make example `at` has the fault, `times` times.

    kill: it kills itself. wait: it waits until there is a file `go`. error: it raises ValueError.
    notes: a folder in which a file of the worker's id tells of each fault.
    """

    job: Job
    notes: Path
    at: int
    fault: Fault
    times: int = 1

    @property
    def content(self) -> Content:
        return self.job.content

    def fields(self) -> Sequence[Field]:
        return self.job.fields()

    def maker(self, split: str) -> Maker:
        make = self.job.maker(split)

        def disturbed(start: int, stop: int) -> Mapping[str, np.ndarray]:
            if start <= self.at < stop and len(self.pids()) < self.times:
                (self.notes / f"{os.getpid()}-{time.monotonic_ns()}").touch()
                self._have()
            return make(start, stop)

        return disturbed

    def pids(self) -> list[int]:
        """Of the workers that had the fault."""
        return [int(note.name.split("-")[0]) for note in self.notes.glob("*-*")]

    def _have(self) -> None:
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "error":
            raise ValueError("no such example")
        while not (self.notes / "go").exists():
            time.sleep(0.01)
