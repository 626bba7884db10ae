"""How running trials hear that they are to leave: of an actor that they ask when an epoch ends.

Tune cannot tell a trial anything but to end at once, which would lose its epoch.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray import tune

from capsweep.ray_start import exceptions, ray
from capsweep.sweep.executors import Source
from capsweep.sweep.job import Job

ASKS = 1.0  # seconds between two questions of a trial, whose epochs may be short
ANSWERS = 10.0  # seconds that a question may take


class _Word:
    """The actor: one word, said once."""

    def __init__(self) -> None:
        self.said = False

    def say(self) -> None:
        self.said = True

    def ask(self) -> bool:
        return self.said


class Signal:
    """The driver's end. The actor is begun with the first sweep that can be bounded."""

    def __init__(self, source: Source, actor: Any) -> None:
        self._source, self._actor, self._said = source, actor, False

    def look(self) -> None:
        """Say it, once, when the source wants its jobs to leave."""
        if self._source.limits.leaves and not self._said and self._actor is not None:
            self._said = True
            self._actor.say.remote()

    def heard(self) -> Callable[[], bool]:
        """The trial's end: whether it is to leave."""
        return _Ear(self._actor)


class _Ear:
    """Asks at most once a second, seldom where nobody answers: that actor may be gone."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.next, self.heard = actor, 0.0, False

    def __call__(self) -> bool:
        if self.actor is not None and not self.heard and time.monotonic() >= self.next:
            pause = ASKS
            try:
                self.heard = bool(ray.get(self.actor.ask.remote(), timeout=ANSWERS))
            except exceptions.RayError:
                pause = 60 * ASKS
            self.next = time.monotonic() + pause
        return self.heard


class Waiting(tune.Stopper):
    """Ends what waits for a node when nothing runs and it is needed no more: none may ever come.

    jobs: what the executor was given, and has not ended.
    """

    def __init__(self, source: Source, jobs: Mapping[str, Job]) -> None:
        self.source, self.jobs = source, jobs

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return (self.source.limits.leaves or bool(self.jobs)) and self.source.is_exhausted

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune stores it for a restore, which we never do

    def __deepcopy__(self, memo: dict[int, Any]) -> "Waiting":
        return self


@contextmanager
def signalled(source: Source) -> Iterator[Signal]:
    """A signal for the trials of a source; without bounds that interrupt there is no actor."""
    if not source.limits.may_leave:
        yield Signal(source, None)
        return
    actor: Any = ray.remote(num_cpus=0)(_Word).remote()
    try:
        yield Signal(source, actor)
    finally:
        ray.kill(actor)
