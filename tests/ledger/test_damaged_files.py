"""One damaged file, of any kind and in any way: the other cells are there, and no traceback is.

Every reader of a ledger is asked. What it may end with is a UserError, never another exception.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import job_queues
import numpy as np
import pytest
import reported_cells
import yaml
from foreign_claims import write_claim

from capsweep import cli
from capsweep.errors import UserError
from capsweep.ledger import lease, listing, upkeep
from capsweep.ledger.ledger import Ledger, fails_again, folder_of, load_predictions
from capsweep.report import publish, table
from capsweep.sweep import plan
from capsweep.sweep.estimates import read_estimates
from capsweep.sweep.expand import Point
from capsweep.tracking import content, upload

LABELS = np.array([0, 1, 2, 0])
MEASURED = job_queues.make_measurement(1)


def write_cell(ledger: Path, point: Point, error: float) -> Path:
    """A finished cell with all its files."""
    folder = reported_cells.finish(ledger, point, error)
    scores = np.eye(3, dtype=np.float32)[[0, 1, 2, 0 if error == 0 else 1]]
    np.savez(folder / "predictions.npz", scores=scores, labels=LABELS)
    (folder / "weights.ckpt").write_bytes(b"weights")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage: two finished cells, a failed one, one that is claimed, one that was stopped."""
    folder = tmp_path_factory.mktemp("whole")
    points, ledger = reported_cells.small_sweep(folder)[1], folder / "ledger"
    reported_cells.sign(write_cell(ledger, points[0], 0.0))
    reported_cells.sign(write_cell(ledger, points[2], 0.25))
    failed, stopped = (ledger / folder_of(p.cell.signature) for p in (points[4], points[3]))
    for one, point in ((failed, points[4]), (stopped, points[3])):
        one.mkdir(parents=True)
        (one / "config.yaml").write_text(yaml.safe_dump(point.cell.science))
        (one / "provenance.json").write_text(json.dumps(reported_cells.PROVENANCE))
    (failed / "error.txt").write_text("ValueError: a bug\n\ntrace\n")
    (stopped / "stopped.json").write_text('{"epochs": 1, "metrics": {}}')
    write_claim(ledger, points[5].cell.signature)
    (ledger / "measurements").mkdir()
    (ledger / "measurements" / "s-0.json").write_text(MEASURED.model_dump_json())
    return folder


FLIPS = 100  # bits of a file
WHOLLY = (
    b"",
    b"\x00\xff\xfe\x80binary",
    b"[]",
    b"{}",
    b"null",
    b"3",
    b'"text"',
    b"NaN",
    b"{",
    b"[" * 100_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"metrics": {"test/error": 1e999}}',
)


def damages(file: Path) -> Iterator[Callable[[Path], object]]:
    """Ways to damage this file; each gets its path in a copy of the storage."""
    content = file.read_bytes()
    yield from (lambda path, c=c: path.write_bytes(c) for c in WHOLLY)
    yield lambda path: path.write_bytes(content[: len(content) // 2])
    for at in range(5, len(content), max(1, len(content) // FLIPS)):
        flipped = content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
        yield lambda path, c=flipped: path.write_bytes(c)
    yield become_a_folder
    yield become_a_pipe


def become_a_folder(path: Path) -> None:
    """A folder where a file was."""
    path.unlink()
    path.mkdir()
    (path / "inside").touch()


def become_a_pipe(path: Path) -> None:
    """What is read once somebody writes to it."""
    path.unlink()
    os.mkfifo(path)


Readers = dict[str, Callable[[Ledger], object]]


@pytest.fixture(scope="module")
def readers(whole: Path) -> Readers:
    """All readers of the ledger of that storage, below the command line."""
    sweep, points = reported_cells.small_sweep(whole)
    entries = [point.cell.signature for point in points]
    planned = plan.make_plan(points, Ledger(whole / "ledger"))

    def report(ledger: Ledger) -> None:
        answer = table.build_table(sweep, points, ledger)
        publish.describe_training(answer)

    def list_failures(ledger: Ledger) -> None:
        listing.group_failures(listing.list_cells(ledger, ledger.list_signatures()))

    def read_cells(ledger: Ledger, read: Callable[[Ledger, str], object]) -> None:
        for point in points:
            with suppress(UserError):
                read(ledger, point.cell.signature)

    of_a_cell = (
        *(Ledger.read_result, Ledger.read_science, Ledger.read_provenance, Ledger.read_rows),
        *(content.read_content, load_predictions),
    )
    return {
        **{read.__name__: partial(read_cells, read=read) for read in of_a_cell},
        "report": report,
        "costs": lambda ledger: read_estimates(ledger, planned.entries),
        "garbage": lambda ledger: list(upkeep.find_garbage(ledger)),
        "failures": list_failures,
        "verify": lambda ledger: [[*upkeep.find_faults(ledger, cell)] for cell in entries],
        "sync": lambda ledger: upload.find_unsynced(ledger, whole, "s", ledger.list_signatures()),
    }


OF_CELLS = ("result.json", "provenance.json", "config.yaml", "metrics.jsonl", "predictions.npz")
FILES = (*OF_CELLS, "weights.ckpt", "error.txt", "stopped.json", "000001", "s-0.json")


def file_of(storage: Path, name: str) -> Path:
    """A file of that name, of a finished cell where one has it."""
    files = sorted(path for path in (storage / "ledger").rglob(f"*{name}") if path.is_file())
    return min(files, key=lambda path: not path.with_name("result.json").exists())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("drawn", [6, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_damaged_file_blinds_a_reader(
    name: str, drawn: int, whole: Path, readers: Readers, tmp_path: Path
) -> None:
    file = file_of(whole, name)
    every = list(damages(file))
    numbers = random.Random(name).sample(range(len(every)), len(every))[:drawn]
    for number in {*numbers, len(every) - 2, len(every) - 1}:
        storage = tmp_path / str(number)
        shutil.copytree(whole, storage)
        every[number](storage / file.relative_to(whole))
        ledger = Ledger(storage / "ledger")
        for what, read in readers.items():
            try:
                read(ledger)
            except UserError:
                continue
            except Exception as error:
                raise AssertionError(f"{what}, damage {number} of {name}: {error!r}") from error
        found = ledger.read_entries(ledger.list_signatures())
        others = [s for s in found if s not in str(file)]
        assert {s: found[s] for s in others} == Ledger(whole / "ledger").read_entries(others)
        shutil.rmtree(storage)


def test_a_result_that_could_be_but_was_altered_is_damaged(whole: Path, tmp_path: Path) -> None:
    ledger = Ledger(shutil.copytree(whole, tmp_path / "storage") / "ledger")
    path = tmp_path / "storage" / file_of(whole, "result.json").relative_to(whole)
    path.write_text(path.read_text().replace('"test/error": 0.0', '"test/error": 0.001'))
    entry = ledger.read_entry(path.parent.name)
    assert "it was altered" in str(entry.cause)
    assert not fails_again(entry)
    assert ledger.read_result(path.parent.name) is None


def test_a_damaged_claim_is_somebodys_until_it_is_released(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = shutil.copytree(whole, tmp_path / "storage")
    file = storage / file_of(whole, "000001").relative_to(whole)
    file.write_bytes(b"")
    signature, ledger = file.name.partition(".")[0], Ledger(storage / "ledger")
    entry = ledger.read_entry(signature)
    assert entry.status == "running"
    assert f"{file} is damaged" in str(entry.owner)
    with pytest.raises(lease.ClaimedElsewhereError, match="is damaged"):
        lease.take_lease(storage / "ledger", signature)
    become_a_folder(file)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)
    assert cli.main(["ledger", "release", signature, f"STORAGE={storage}"]) == 0
    assert ledger.read_entry(signature).status == "missing"
    assert "released" in capsys.readouterr().out
