"""The table of `capsweep gpu-proof`: how large it is, its sweep, and the export of its cells."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.cli import parser, sweep_options
from capsweep.config import compose
from capsweep.errors import UserError
from capsweep.ledger import transfer
from capsweep.ledger.ledger import Ledger
from capsweep.storage.official_files import OfficialFiles

LARGEST_EXPORT = 15e6  # bytes: it is carried by hand
TABLE = "table1_mnist_gpu"  # of sweeps/
CAPSWEEP = (sys.executable, "-m", "capsweep")
PLACES, IMAGES, BATCH = 4, 60_000, 128  # of the table without seeds; of MNIST
MOST_EPOCHS, FEWEST_EPOCHS, SEEDS = 50, 10, 3
OVERHEAD = 1.3  # of a cell, over its training steps
CLOSING = 45.0  # seconds of the table for its last epoch and the report
RATE, END = 0.96, 1 / 20  # of the learning rate: in `optim.schedule.steps` steps, and in all
SMALL = ("model=capsnet_tiny", "dataset=digits", "limit_batches=2")
UNMEASURED = 20_000.0  # images a second, where no benchmark could measure them


def check_images(data: str) -> None:
    """Raise DataError naming the folder and the cure where its data set lacks a file there."""
    reader = compose.cell(["dataset=mnist"]).config["dataset"]["reader"]
    files = OfficialFiles(reader["folders"], " or ".join(reader["mirrors"]))
    files.find_all(data, {name: (f"{name}.gz", name) for name in reader["sha256"]})


@dataclass(frozen=True)
class TableSize:
    """Of the cells of the table. schedule_steps: `optim.schedule.steps`."""

    epochs: int
    seeds: int
    schedule_steps: int


def find_speed(parts: Mapping[str, Any]) -> float:
    """Images a second of the CapsNet as a cell trains it, by the benchmarks that measured it."""
    for name, wanted in (("step", {"candidate": "fast fp32"}), ("sharing", {"processes": 1})):
        for row in parts.get(name, {}).get("content", {}).get("timings", []):
            if wanted.items() <= row.items():
                return row["images/s"]
    return UNMEASURED


def list_sweep_choices(size: TableSize, is_quick: bool) -> list[str]:
    """The words of the sweep that say which cells it has."""
    words = [TABLE, "--epochs", str(size.epochs), "--seeds", str(size.seeds)]
    words += [f"optim.schedule.steps={size.schedule_steps}", "logger=csv"]
    return [*words, *(SMALL if is_quick else ())]


def make_sweep_command(table: Sequence[str], seconds: float) -> list[str]:
    """The sweep of the table, whose cells leave in time with their checkpoints."""
    hours = f"{max(seconds - CLOSING, 10) / 3600:.4f}"
    words = ["--executor", "local", "--max-hours", hours, "--retry", "failed"]
    return [*CAPSWEEP, "sweep", *table, *words]


def make_export_command(file: Path, table: Sequence[str], ledger: Ledger) -> list[str]:
    """The export of the cells of the table that ended; nothing where none did."""
    if not table:
        return []
    _, points = sweep_options.load_points(parser.parse_arguments(["sweep", *table]))
    ended = transfer.list_ended_cells(ledger.entries(point.cell.signature for point in points))
    words = [*CAPSWEEP, "ledger", "export", "--without-weights", str(file)]
    return [*words, *ended] if ended else []


def choose_size(images_per_second: float, seconds: float) -> TableSize:
    """The most epochs that fit, of three seeds, or of one where those would be few. The learning
    rate falls to END.
    """
    fitting = seconds * images_per_second / (PLACES * IMAGES * OVERHEAD)
    seeds = SEEDS if fitting / SEEDS >= FEWEST_EPOCHS else 1
    epochs = max(1, min(MOST_EPOCHS, int(fitting / seeds)))
    steps = epochs * math.ceil(IMAGES / BATCH)
    return TableSize(epochs, seeds, max(1, round(steps * math.log(RATE) / math.log(END))))


def read_table(output: str, _: Path) -> dict[str, Any]:
    """The table, as the report of the sweep has it. Raises ValueError where there is no report."""
    reports = re.findall(r"^report: (.+)/index\.html$", output, re.MULTILINE)
    if not reports:
        raise ValueError("the sweep wrote no report")
    return {"table": (Path(reports[-1]) / "table.md").read_text(encoding="utf-8")}


def read_export(_: str, result: Path) -> dict[str, Any]:
    """The size of the file. Raises UserError for one that is too large to be carried."""
    size = result.stat().st_size
    if size >= LARGEST_EXPORT:
        raise UserError(
            f"{result} has {size:,} bytes, and is to have less than {LARGEST_EXPORT:,.0f}"
        )
    return {"file": str(result), "bytes": size}
