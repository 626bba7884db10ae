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


class _Flag:
    """The actor."""

    def __init__(self) -> None:
        self.is_set = False

    def set_flag(self) -> None:
        self.is_set = True

    def read_flag(self) -> bool:
        return self.is_set


class StopSignal:
    """The driver's end of an actor; None: no trial will ever have to leave."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._is_sent = actor, False

    def send_once(self) -> None:
        """Tell all trials to leave."""
        if not self._is_sent and self._actor is not None:
            self._is_sent = True
            self._actor.set_flag.remote()

    def make_receiver(self) -> "StopReceiver":
        """The trials' end, which travels to them."""
        return StopReceiver(self._actor)


class StopReceiver:
    """Whether a trial is to leave, asked at most once a second."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.next_ask, self.is_set = actor, 0.0, False

    def __call__(self) -> bool:
        if self.actor is not None and not self.is_set and time.monotonic() >= self.next_ask:
            pause = ASK_SECONDS
            try:
                answer = ray.get(self.actor.read_flag.remote(), timeout=ANSWER_SECONDS)
                self.is_set = bool(answer)
            except exceptions.RayError:
                pause = RETRY_SECONDS
            self.next_ask = time.monotonic() + pause
        return self.is_set


@contextmanager
def open_stop_signal(limits: Limits) -> Iterator[StopSignal]:
    """A signal for trials; its actor is started only for limits that may interrupt them."""
    if not limits.may_interrupt:
        yield StopSignal(None)
        return
    actor: Any = ray.remote(num_cpus=0)(_Flag).remote()
    try:
        yield StopSignal(actor)
    finally:
        ray.kill(actor)
