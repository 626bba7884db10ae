"""Runs bad inputs, each in a fork of one process and in the same folder, made anew."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import bad_input_process
from bad_inputs import SECONDS, Case, Outcome, judged


class Runner:
    """Runs commands in forks of one process, each in the same folder, made anew."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / "case"
        hidden = ("WANDB_", "RAY_", "CAPSWEEP_", "STORAGE", "DATA_DIR", "LEDGER")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
        own = {"NETRC": str(place / "no-netrc"), "XDG_CACHE_HOME": str(place / "cache")}
        self._process = subprocess.Popen(
            [sys.executable, bad_input_process.__file__],
            env={**kept, **own, "OMP_NUM_THREADS": "1", "COLUMNS": "300", "HOME": str(place)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def command(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        limit: float = SECONDS,
        allowed: bool = False,
    ) -> Outcome:
        """Run one in the folder as it is. allowed: it may train."""
        asked = {"argv": list(argv), "folder": str(self.folder), "env": dict(env or {})}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked | {"limit": limit, "allowed": allowed}) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def renew(self, base: Path | None) -> None:
        """The folder as `base` is; empty without one."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if base is None:
            self.folder.mkdir()
        else:
            shutil.copytree(base, self.folder, symlinks=True)

    def complaint(self, case: Case, base: Path) -> str | None:
        """What is wrong with how a case ends; None: nothing. Slow ones get a second chance: the
        machine may have had other work.
        """
        outcome = self._ended(case, base)
        if outcome.status is None:
            outcome = self._ended(case, base)
        wrong = judged(outcome) or case.judge(outcome, self.folder)
        if wrong is None:
            return None
        argv = " ".join(ascii(word)[:120] for word in case.argv)
        last = " / ".join(ascii(line)[1:-1] for line in outcome.said.splitlines()[-3:])[-300:]
        return f"{case.told}\n    {argv}\n    status {outcome.status}, {wrong}\n    {last}"

    def _ended(self, case: Case, base: Path) -> Outcome:
        self.renew(base)
        case.prepare(self.folder)
        return self.command(case.argv, case.env)
