"""The page of a report, renewed by another process while the sweep runs.

The driver only starts this process: it neither reads cells nor draws. So a fault or a slow ledger
cannot disturb the sweep.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from capsweep.config.places import Places
from capsweep.runtime import terminal
from capsweep.sweep.spec import Sweep

PAUSE = 30  # seconds of pause for each CPU second of a renewal: it takes 3 % of one core
NICENESS = 5  # lower priority than that of cells
GRACE = 5.0  # seconds after which a renewal that does not end is killed


def locate_page(places: Places, sweep: Sweep) -> Path:
    """Return the path of a sweep's page."""
    return places.storage / "reports" / sweep.report_name / "index.html"


class LivePage:
    """The page of a sweep that runs.

    Args:
        path: The page.
        words: The words of `capsweep` that write the page.
        console: Where the path of the page is printed when the first cell starts.
    """

    def __init__(self, path: Path, words: Sequence[str], console: Console) -> None:
        self.path, self.console = path, console
        self.command = [sys.executable, "-m", "capsweep", *words]
        self._renewal: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._shown, self._next = 0, 0.0  # ended cells on the page; when it may be renewed again
        self._is_closed = False

    def renew(self, ended: int) -> None:
        """Start to renew the page if a cell has ended since, and if the pause is over.

        Args:
            ended: The number of cells that have ended so far.
        """
        if self._renewal is None and self._next == 0:
            self._next = time.monotonic()
            text = f"report: {self.path} (from the first finished cell on; it renews itself)"
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        is_busy = self._renewal is not None and self._renewal.is_alive()
        if ended != self._shown and not is_busy and time.monotonic() >= self._next:
            self._shown = ended
            self._renewal = threading.Thread(target=self._run, daemon=True)
            self._renewal.start()

    def _run(self) -> None:
        """Renew the page, and decide when it may be renewed again."""
        none = subprocess.DEVNULL
        try:  # its own session, so that Ctrl-C stops only the sweep
            process = self._process = subprocess.Popen(
                self.command, stdin=none, stdout=none, stderr=none, start_new_session=True
            )
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        except OSError as error:
            terminal.print_once(f"{self.path} could not be renewed: {error}")
            self._next = float("inf")
            return
        if status and not self._is_closed:
            terminal.print_once(f"{self.path} could not be renewed; make report says why")
        self._next = time.monotonic() + PAUSE * (usage.ru_utime + usage.ru_stime)

    def close(self) -> None:
        """End a renewal that runs, so that it does not replace the page of the ended sweep."""
        self._is_closed = True
        for number in (signal.SIGINT, signal.SIGKILL):  # after SIGINT, no temporary file is left
            if self._renewal is not None and self._renewal.is_alive() and self._process is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._process.pid, number)
                self._renewal.join(GRACE)
