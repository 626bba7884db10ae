"""The page of a report, renewed by another process while the sweep runs.

The driver only starts this process: it neither reads cells nor draws. So a fault or a slow ledger
cannot disturb the sweep.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from capsweep.config.places import Places
from capsweep.runtime import terminal
from capsweep.sweep.spec import Sweep

PAUSE = 30  # seconds between two starts for each CPU second of a renewal: 3 % of one core
NICENESS = 19  # a lower priority than that of cells, which is 15 under Ray
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
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._next = 0.0, 0.0  # when the renewal began; when the next may begin
        self._shown: int | None = None  # number of ended cells on the page; None before the start

    def renew(self, ended: int) -> None:
        """Start to renew the page if a cell has ended since, and if the pause is over.

        Args:
            ended: The number of cells that have ended so far.
        """
        if self._shown is None:
            self._shown = 0
            text = f"report: {self.path} (from the first finished cell on; it renews itself)"
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        try:
            is_free = self._process is None or self._has_ended(self._process)
            if is_free and ended != self._shown and time.monotonic() >= self._next:
                self._shown, self._began = ended, time.monotonic()
                self._process = self._start()
        except OSError as error:  # no fault of the page may end the sweep
            self._next = float("inf")
            terminal.print_once(f"{self.path} is not renewed any more: {error}")

    def _start(self) -> "subprocess.Popen[bytes]":
        none = subprocess.DEVNULL
        process = subprocess.Popen(  # in its own session, so that Ctrl-C stops only the sweep
            self.command, stdin=none, stdout=none, stderr=none, start_new_session=True
        )
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        return process

    def _has_ended(self, process: "subprocess.Popen[bytes]") -> bool:
        """Return whether a renewal has ended; its CPU time decides when the next may begin."""
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            self._process, process.returncode = None, os.waitstatus_to_exitcode(status)
            self._next = self._began + PAUSE * (usage.ru_utime + usage.ru_stime)
            if status:
                terminal.print_once(f"{self.path} could not be renewed; make report says why")
        return bool(ended)

    def close(self) -> None:
        """End a renewal that runs, so that it does not replace the page of the ended sweep."""
        if (process := self._process) is not None:
            process.send_signal(signal.SIGINT)  # unlike SIGKILL, it leaves no temporary file
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
