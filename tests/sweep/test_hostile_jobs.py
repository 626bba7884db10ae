"""What a worker is given is data: a job that names other code to call is refused before any is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from capsweep.config import compose
from capsweep.ledger.ledger import folder_of
from capsweep.tracking.content import Labels
from capsweep.training import RunHooks
from capsweep.training.run import Job, run_job

SMALL = ["epochs=1", "limit_batches=1", "batch_size=8", "trainer.accelerator=cpu", "logger=csv"]

# A worker: it has never composed a configuration, and runs what it is handed.
WORKER = """
import json, sys
from capsweep.training.run import Job, run_job
from capsweep.training import RunHooks
assert not any(name.startswith("capsweep.config.compose") for name in sys.modules)
for text in json.load(sys.stdin):
    print(json.dumps(vars(run_job(Job.from_json(text), RunHooks()))))
"""


def write_hostile_job(tmp_path: Path, path: str, section: Any, measures: bool = False) -> str:
    """A job as it travels, with a section in the place of its own."""
    cell = compose.cell([*SMALL, f"places.storage={tmp_path}"])
    plain = json.loads(Job(cell, Labels(), is_calibration=measures).to_json())
    inner = json.loads(plain["cell"])
    *parents, name = path.split(".")
    place = inner["config"]
    for parent in parents:
        place = place[parent]
    place[name] = section
    return json.dumps({**plain, "cell": json.dumps(inner)})


@pytest.mark.slow
def test_a_job_that_names_other_code_is_refused_by_a_worker_that_never_composed(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "called"
    call = {"_target_": "os.mkdir", "path": str(mark)}
    sections = [
        *(("dataset.reader", call), ("optim.optimizer", call), ("logger.extra", call)),
        ("model", {"_target_": "capsweep.storage.files.os.mkdir", "path": str(mark)}),
        ("model.conv", [{"inside": [call]}]),
    ]
    jobs = [write_hostile_job(tmp_path, path, section) for path, section in sections]
    jobs.append(write_hostile_job(tmp_path, "dataset.reader", call, measures=True))
    ended = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    outcomes = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(outcomes) == len(jobs)
    for outcome in outcomes:
        assert outcome["result"] is None
        assert outcome["cause"].startswith("ConfigError: "), outcome
        assert "may not be called" in outcome["cause"]
    assert not mark.exists()


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (str(self.path),)


def test_a_checkpoint_that_holds_a_pickle_is_refused_and_not_unpickled(tmp_path: Path) -> None:
    cell = compose.cell([*SMALL, f"places.storage={tmp_path}"])
    folder = tmp_path / "ledger" / folder_of(cell.signature)
    folder.mkdir(parents=True)
    torch.save({"state_dict": Evil(tmp_path / "called")}, folder / "resume.ckpt")
    outcome = run_job(Job(cell, Labels()), RunHooks())
    assert outcome.result is not None, outcome.cause
    assert "it is not a checkpoint of a cell (UnpicklingError)" in outcome.result["begun_anew"]
    assert not (tmp_path / "called").exists()
