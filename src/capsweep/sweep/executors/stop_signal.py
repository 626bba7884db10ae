"""How running trials learn that they are to leave: an actor, which they ask when an epoch ends.

Tune itself can only end a trial at once, which would lose its epoch.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from capsweep.ray_start import exceptions, ray
from capsweep.sweep.limits import Limits

ASK_SECONDS = 1.0  # between two questions of a trial, whose epochs may be short
ANSWER_SECONDS = 10.0  # that a question may take
RETRY_SECONDS = 60.0  # after a question without an answer: the actor may be gone


class StopSignal:
    """The driver sets it, and trials, to which it travels, read it.

    event: an actor, None where no trial will ever have to leave.
    """

    def __init__(self, event: Any) -> None:
        self._event, self._is_set, self._next_ask = event, False, 0.0

    def set_once(self) -> None:
        """Tell all trials to leave."""
        if not self._is_set and self._event is not None:
            self._event.set_event.remote()
        self._is_set = True

    def is_set(self) -> bool:
        """Whether a trial is to leave, asked at most once a second."""
        if self._event is not None and not self._is_set and time.monotonic() >= self._next_ask:
            pause = ASK_SECONDS
            try:
                answer = ray.get(self._event.has_event.remote(), timeout=ANSWER_SECONDS)
                self._is_set = bool(answer)
            except exceptions.RayError:
                pause = RETRY_SECONDS
            self._next_ask = time.monotonic() + pause
        return self._is_set


class _Event:
    def __init__(self) -> None:
        self._is_set = False

    def set_event(self) -> None:
        self._is_set = True

    def has_event(self) -> bool:
        return self._is_set


@contextmanager
def open_stop_signal(limits: Limits) -> Iterator[StopSignal]:
    """A signal for trials; its actor is started only for limits that may interrupt them."""
    if not limits.may_interrupt:
        yield StopSignal(None)
        return
    actor: Any = ray.remote(num_cpus=0)(_Event).remote()
    try:
        yield StopSignal(actor)
    finally:
        ray.kill(actor)
