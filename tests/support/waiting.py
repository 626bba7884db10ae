"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float) -> None:
    """Poll a condition; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.05)
