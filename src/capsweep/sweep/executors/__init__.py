"""Where jobs run. Each executor draws jobs from a source and tells it what happens; none is
imported unless chosen, since Ray need not be installed."""

import importlib.util
from pathlib import Path
from typing import Any, Protocol

from capsweep.errors import ConfigError
from capsweep.sweep.cluster import LOCAL, Cluster
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.limits import Limits
from capsweep.sweep.placement import Capacity

NAMES = ("ray", "local", "array")


class Source(Protocol):
    """Jobs, one at a time, and what becomes of them. limits: say when running jobs are to leave,
    and whether that may ever be, so that an executor need not listen for it. left: jobs that were
    not started.
    """

    @property
    def limits(self) -> Limits: ...

    @property
    def left(self) -> int: ...

    @property
    def is_exhausted(self) -> bool: ...

    def opens(self, capacity: Capacity) -> None:
        """Told again when a cluster has grown."""
        ...

    def next(self) -> Job | None: ...

    def started(self, job: Job) -> None: ...

    def refused(self, job: Job) -> None:
        """Its node could not run it: it has no worker until it is told as started again."""
        ...

    def epoch(self, job: Job, row: dict[str, Any]) -> None: ...

    def ended(self, job: Job, outcome: Outcome) -> None: ...


class Executor(Protocol):
    """Runs jobs until the source is exhausted; returns early, without an exception, when the user
    interrupts. scratch: a folder of this machine for its own files."""

    def __call__(self, source: Source, scratch: Path, cluster: Cluster = LOCAL) -> None: ...


def choose(name: str) -> Executor:
    """The executor of that name. Raises ConfigError when it is unknown or Ray is not installed."""
    if name in ("local", "array"):  # a job of an array runs its part of the cells by itself
        from capsweep.sweep.executors import local

        return local.execute
    if name == "ray":
        for package in ("ray", "pandas"):  # found and not imported, which takes a second
            if importlib.util.find_spec(package) is None:
                cure = "install ray[tune] or set EXECUTOR=local"
                raise ConfigError(f"EXECUTOR=ray: No module named '{package}'; {cure}")
        return _execute_on_ray
    raise ConfigError(f"EXECUTOR={name}: have {', '.join(NAMES)}")


def _execute_on_ray(source: Source, scratch: Path, cluster: Cluster = LOCAL) -> None:
    from capsweep.sweep.executors import ray_tune

    ray_tune.execute(source, scratch, cluster)
