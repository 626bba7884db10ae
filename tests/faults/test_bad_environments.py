"""Environments that are not ours, drawn by chance: screens that lack characters, and variables that
other programs left. Nothing ends in a fault of ours, and a report is there before it is shown.
"""

import io
import re
import sys
from pathlib import Path
from random import Random

import pytest
import reported_cells

from capsweep import cli
from capsweep.config import compose
from capsweep.errors import UserError
from capsweep.tracking import mode

SCREENS, VARIABLES = range(40), range(40)  # cases
ENCODINGS = ("ascii", "latin-1", "cp1252", "cp437", "koi8-r", "shift_jis", "utf-8", "utf-16-le")
COMMANDS = (
    ("report", "small.yaml", "STORAGE=."),
    ("plan", "small.yaml", "STORAGE=."),
    ("ledger", "ls", "STORAGE=."),
    ("ledger", "verify", "STORAGE=."),
    ("sweep", "--help"),
    ("plan", "no-sweep-–-of-this-name"),
)
# What an agent, a notebook, a secret or a slip leaves in W&B's variables.
VALUES = ("", " ", "key\n", "a/b", "no host", "http://", "1", "true", "disabled", "x" * 500, "ünï")
NAMES = ("API_KEY", "PROJECT", "ENTITY", "BASE_URL", "MODE", "DISABLED", "RUN_ID", "SWEEP_ID")


@pytest.mark.parametrize("number", SCREENS)
def test_a_screen_that_lacks_characters_hides_no_report(
    number: int, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(f"screen/{number}")
    text = reported_cells.SWEEP.replace(
        "Is one", chance.choice(["Is ± one", "Ist ein ßæ", "Is one"])
    )
    _, points = reported_cells.small_sweep(own_folder, text)
    for point in points:
        reported_cells.finish(own_folder / "ledger", point, chance.random())
    screens = [io.TextIOWrapper(io.BytesIO(), chance.choice(ENCODINGS)) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", screens[0])
    monkeypatch.setattr(sys, "stderr", screens[1])
    command = chance.choice(COMMANDS)
    try:
        status = cli.main(command)
    except SystemExit as ended:  # --help
        status = ended.code
    shown = []
    for screen in screens:
        screen.flush()
        shown.append(screen.buffer.getvalue().decode(screen.encoding))
    assert status in (0, 1, 2), shown
    assert not re.search(r"Traceback|UnicodeEncodeError|unexpected", "".join(shown)), shown
    assert "".join(shown).strip()
    if command[0] == "report":
        assert (own_folder / "reports" / "small" / "index.html").exists()


@pytest.mark.parametrize("number", VARIABLES)
def test_variables_of_wandb_are_refused_in_a_line_or_harmless(
    number: int, monkeypatch: pytest.MonkeyPatch, own_folder: Path
) -> None:
    chance = Random(f"variables/{number}")
    for name in chance.sample(NAMES, 3):
        monkeypatch.setenv(f"WANDB_{name}", chance.choice(VALUES))
    config = compose.cell(["experiment=digits", "logger=wandb", "logger.mode=auto"]).config
    monkeypatch.setattr(mode, "PROBE_SECONDS", 0.2)
    try:
        decided, line = mode.decide_mode(config)
    except UserError as error:
        decided, line = "refused", str(error)
    assert decided in ("offline", "none", "online", "refused")
    assert "\n" not in line
