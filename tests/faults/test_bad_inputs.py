"""Bad inputs, drawn by chance: each is told in a line, soon, and none is used silently.

Six of each kind, or as many in all as CAPSWEEP_BAD_INPUTS says (the long suite: 600); a case is a
function of its kind and number.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache

import pytest
from bad_archives import archive
from bad_command_lines import command_line
from bad_input_runner import Runner
from bad_inputs import SWEEP, Base, Case, Draw, Outcome, any_end, judged
from bad_ledgers import normal, stored_file
from bad_settings import configuration, sweep_file

from capsweep.ledger import lease

DRAWS: dict[str, Draw] = {
    "command lines": command_line,
    "configurations": configuration,
    "sweep files": sweep_file,
    "stored files": stored_file,
    "archives": archive,
}
CASES = int(os.environ.get("CAPSWEEP_BAD_INPUTS", "30")) // len(DRAWS)


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The process that runs all commands."""
    runner = Runner(tmp_path_factory.mktemp("bad"))
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def base(runner: Runner) -> Base:
    """Four cells that were really trained; one of them is made a failure."""
    runner.renew(None)
    (runner.folder / "small.yaml").write_text(SWEEP)
    train = ["sweep", "small.yaml", "--executor=local", "--storage=out", "logger=csv"]
    trained = runner.command(train, limit=120, allowed=True)
    assert trained.status == 0, trained.said
    shutil.rmtree(runner.folder / "out" / "reports")
    ledger = runner.folder / "out" / "ledger"
    cells = sorted(path.parent for path in ledger.glob("*/*/result.json"))
    *finished, failed = cells
    (failed / "result.json").unlink()
    (failed / "error.txt").write_text("RuntimeError: it failed\n\nTrace of it\n")
    (ledger / "claims").mkdir(exist_ok=True)
    dead = asdict(replace(lease.current_owner(), started="0"))
    (ledger / "claims" / f"{failed.name}.000001").write_text(json.dumps({"owner": dead, "beat": 1}))
    assert runner.command(["ledger", "export", "--storage=out", "whole.tar"]).status == 0
    archive = (runner.folder / "whole.tar").read_bytes()
    (runner.folder / "whole.tar").unlink()
    folder = runner.place / "base"
    shutil.copytree(runner.folder, folder)

    @cache
    def tell(argv: tuple[str, ...]) -> str:
        runner.renew(folder)
        return normal(runner.command(argv).said)

    return Base(folder, tuple(cell.name for cell in finished), failed.name, archive, tell)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", DRAWS)
def test_a_bad_input_is_told_soon_and_never_used(kind: str, runner: Runner, base: Base) -> None:
    complaints = []
    for number in range(CASES):
        case = DRAWS[kind](random.Random(f"{kind}/{number}"), base)
        if wrong := runner.complaint(case, base.folder):
            complaints.append(f"{kind} {number}: {wrong}")
    assert not complaints, "\n".join([f"{len(complaints)} of {CASES}:", *complaints])


@pytest.mark.parametrize(
    ("status", "err", "wrong"),
    [
        (None, "", "longer than 5 s"),
        (-11, "", "signal 11"),
        (2, "Traceback (most recent call last):\nerror: x", "a traceback"),
        (2, "something was wrong", "no line that begins with error:"),
        (70, "error: x", "a status that means nothing"),
        (0, "\x1b[2J", "a terminal would obey"),
    ],
)
def test_no_bad_end_is_overlooked(status: int | None, err: str, wrong: str) -> None:
    assert wrong in (judged(Outcome(status, "", err, 0.1)) or "")
    assert judged(Outcome(2, "", "error: x", 0.1)) is None


def test_a_command_that_would_train_is_seen(runner: Runner, base: Base) -> None:
    case = Case("", ["train", "experiment=digits", "logger=csv"], any_end)
    assert "it would have trained" in (runner.complaint(case, base.folder) or "")
