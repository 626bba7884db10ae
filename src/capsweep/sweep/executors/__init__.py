"""Where jobs run. Each executor takes jobs and tells a listener what happens; none is imported
unless chosen, since Ray need not be installed."""

from collections.abc import Sequence
from typing import Any, Protocol

from capsweep.errors import ConfigError
from capsweep.sweep.job import Job, Outcome

NAMES = ("ray", "local")


class Listener(Protocol):
    """Is told about jobs by their signature."""

    def started(self, signature: str) -> None: ...

    def epoch(self, signature: str, row: dict[str, Any]) -> None: ...

    def ended(self, signature: str, outcome: Outcome) -> None: ...


class Executor(Protocol):
    """Runs all jobs; returns early, without an exception, when the user interrupts."""

    def __call__(self, jobs: Sequence[Job], listener: Listener) -> None: ...


def choose(name: str) -> Executor:
    """The executor of that name. Raises ConfigError when it is unknown or Ray is not installed."""
    if name == "local":
        from capsweep.sweep.executors import local

        return local.execute
    if name == "ray":
        try:
            from capsweep.sweep.executors import ray_tune
        except ImportError as error:
            cure = "install ray[tune] or set EXECUTOR=local"
            raise ConfigError(f"EXECUTOR=ray: {error}; {cure}") from error
        return ray_tune.execute
    raise ConfigError(f"EXECUTOR={name}: have {', '.join(NAMES)}")
