"""The table of `capsweep gpu-proof`: its size, and the export of its cells."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.cli import gpu_proof_parts, gpu_proof_table
from capsweep.cli.gpu_proof_parts import Part
from capsweep.cli.gpu_proof_table import TableSize
from capsweep.cli.parser import parse_arguments
from capsweep.cli.sweep_options import load_points
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger, folder_of


@pytest.mark.parametrize(
    ("images_per_second", "seconds", "size"),
    [
        (60_000, 780, TableSize(50, 3, 320)),  # the most
        (60_000, 156, TableSize(10, 3, 64)),
        (60_000, 155, TableSize(29, 1, 185)),  # fewer than ten of three seeds
        (60_000, 3000, TableSize(50, 3, 320)),
        (1000, 10, TableSize(1, 1, 6)),
    ],
)
def test_epochs_fit_into_the_time_that_is_left(
    images_per_second: float, seconds: float, size: TableSize
) -> None:
    assert gpu_proof_table.choose_size(images_per_second, seconds) == size
    rate = 0.96 ** (size.epochs * 469 / size.schedule_steps)
    assert rate == pytest.approx(1 / 20, rel=0.25)


def test_the_speed_is_that_of_a_cell_wherever_it_was_measured() -> None:
    step = {"content": {"timings": [{"candidate": "fast fp32", "images/s": 5.0}]}}
    sharing = {"content": {"timings": [{"processes": 1, "images/s": 4.0}]}}
    assert gpu_proof_table.find_speed({"step": step, "sharing": sharing}) == 5
    assert gpu_proof_table.find_speed({"step": {"content": {}}, "sharing": sharing}) == 4
    assert gpu_proof_table.find_speed({}) == gpu_proof_table.UNMEASURED


def test_the_export_has_the_finished_cells_of_the_table_alone(
    storage: Path, small_cell: Callable[..., Cell]
) -> None:
    ledger = Ledger(str(storage / "ledger"))
    table = gpu_proof_table.list_sweep_choices(TableSize(2, 1, 9), is_quick=True)
    assert gpu_proof_table.make_export_command(storage / "cells.tar", table, ledger) == []
    assert gpu_proof_table.make_export_command(storage / "cells.tar", [], ledger) == []
    _, points = load_points(parse_arguments(["sweep", *table]))
    assert len(points) == 4
    finished = points[1].cell.signature
    for signature in (finished, small_cell().signature):
        ledger.store.write(f"{folder_of(signature)}/result.json", b'{"metrics": {}}')
    words = gpu_proof_table.make_export_command(storage / "cells.tar", table, ledger)
    assert words[3:] == ["ledger", "export", "--without-weights", f"{storage}/cells.tar", finished]


def test_an_export_that_is_too_large_to_be_carried_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_proof_table, "LARGEST_EXPORT", 5)
    write = f"open({str(tmp_path / 'cells.tar')!r}, 'x').write('12345')"
    read = gpu_proof_table.read_export
    words = [sys.executable, "-c", write]
    part = Part("export", lambda _: words, 60, read, tmp_path / "cells.tar")
    for _ in range(2):  # the first file is replaced
        entry = gpu_proof_parts.run_part(part, 60, tmp_path / "log", os.environ)
        assert entry["status"] == "failed"
        assert "has 5 bytes" in entry["cause"]
