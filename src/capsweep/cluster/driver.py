"""The process that drives a sweep inside a cluster's job: it is ended by a signal.

`python -m capsweep.cluster.driver FILE WORD ...` writes its process id into FILE and becomes the
command WORD ...; before that it makes Ctrl-C's signal work again, which a shell takes from what it
starts in the background.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from capsweep.storage.files import write_text


def main(arguments: Sequence[str]) -> None:
    """Become the command."""
    first, *words = arguments
    write_text(Path(first), str(os.getpid()))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(words[0], words)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does: its trials are stopped, and it says how far it is.

    Ray's jobs inherit SIGINT blocked, and a shell's background jobs ignore it: it is let in.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)  # to whoever has that now: Ray Tune, while it runs


if __name__ == "__main__":
    main(sys.argv[1:])
