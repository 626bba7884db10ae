"""`capsweep train`: one cell, as a Hydra application.

Overrides are checked by our own composition first, whose errors are one line and name the key.
"""

import os
import sys
from collections.abc import Sequence

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from capsweep.config import compose, places, roots
from capsweep.config.cell import Cell
from capsweep.config.groups import with_slashes
from capsweep.errors import UserError
from capsweep.object_store import is_url, join

# Options after which Hydra only prints, or runs several jobs, each of which is checked by itself.
HELP = {"--help", "-h", "--hydra-help", "-sc", "--shell-completion", "--info", "-i"}
UNCHECKED = HELP | {"--multirun", "-m"}
WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--config-name", "-cn"}


def main(arguments: Sequence[str]) -> int:
    """Run the application; returns 0, 1 when the cell failed, 2 for bad input."""
    if not any(argument in UNCHECKED for argument in arguments):
        compose.cell(_overrides(arguments))
    # The shell completes `capsweep train ...`; Hydra expects the program's name alone before
    # overrides.
    line = os.environ.get("COMP_LINE", "")
    os.environ["COMP_LINE"] = line.replace("capsweep train ", "capsweep ", 1)
    sys.argv = ["capsweep", *map(_as_hydra_reads, arguments), *_folder_of_jobs(arguments)]
    status = 0

    @hydra.main(config_path=str(roots.find("conf")), config_name="train", version_base="1.3")
    def application(_: DictConfig) -> None:
        nonlocal status
        status = max(status, _run(list(HydraConfig.get().overrides.task)))

    application()
    return status


def _folder_of_jobs(arguments: Sequence[str]) -> list[str]:
    """Several jobs have a folder of Hydra's, below the storage where that is a folder."""
    given = [word.partition("=")[2] for word in arguments if word.startswith("places.storage=")]
    storage = (given or [os.environ.get("STORAGE", "")])[-1].strip("'\"")
    if not {"--multirun", "-m"} & set(arguments) or not is_url(storage):
        return []
    return [f"hydra.sweep.dir={places.folder_of(storage) / 'multirun'}"]


def _as_hydra_reads(argument: str) -> str:
    """A group within a group may be typed with a dot, which Hydra would take for a key's."""
    key, equals, value = argument.partition("=")
    return f"{with_slashes(key)}{equals}{value}" if equals else argument


def _overrides(arguments: Sequence[str]) -> list[str]:
    """The arguments that are neither options of Hydra nor their values."""
    before = ["", *arguments]
    return [
        word
        for previous, word in zip(before, arguments, strict=False)
        if not word.startswith("-") and previous not in WITH_VALUE
    ]


def _run(overrides: list[str]) -> int:
    try:
        cell = compose.cell(overrides)
        return _run_cell(cell)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run_cell(cell: Cell) -> int:
    from capsweep.ledger.ledger import folder_of
    from capsweep.sweep.job import Job, run_job
    from capsweep.tracking import mode as modes
    from capsweep.tracking import names
    from capsweep.training import build
    from capsweep.training.size import size

    here = places.resolve(cell.config["places"])
    parameters = size(cell.config).parameters
    places.prepare(here)
    mode, reason = modes.settle(cell.config)
    build.source(cell.config).check(str(here.data))
    epochs = cell.config["epochs"]
    print(f"cell {cell.signature}: {parameters:,} parameters, {epochs} epochs\n{reason}")
    if footnote := cell.config["dataset"].get("footnote"):
        print(f"{cell.config['dataset']['name']}: {footnote}")
    job = Job(modes.settled(cell, mode), names.labels_of(cell))
    outcome = run_job(job, on_epoch=_print_row)
    if outcome.elsewhere is not None:
        raise UserError(
            f"{outcome.elsewhere}; wait for it, or end it. If that machine is gone: "
            f"capsweep ledger release {cell.signature}"
        )
    if outcome.result is None:
        print(f"error: {outcome.cause}", file=sys.stderr)
        return 1
    metrics = outcome.result["metrics"]
    print("  ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    if (fingerprint := outcome.result.get("test_sha256")) is not None:
        print(f"test set: {cell.config['dataset']['examples']['test']} examples, {fingerprint}")
    print(f"results: {join(here.ledger, folder_of(cell.signature))}")
    return 0


def _print_row(row: dict) -> None:
    values = [f"{key} {value:.4g}" for key, value in row.items() if key not in ("epoch", "step")]
    print(f"epoch {row['epoch']}:  {'  '.join(values)}", flush=True)
