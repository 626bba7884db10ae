"""`capsweep train`: one cell, as a Hydra application.

Overrides are checked by our own composition first, whose errors are one line and name the key.
"""

import contextlib
import io
import itertools
import math
import os
import sys
from collections.abc import Sequence, Set

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from capsweep.config import compose, package_files, places
from capsweep.config import overrides as grammar
from capsweep.config.cell import Cell
from capsweep.config.groups import with_slashes
from capsweep.errors import ConfigError, UserError
from capsweep.storage import disk_cache
from capsweep.storage.stores import is_url, join

# Options after which Hydra only prints, or runs several jobs, each of which is checked by itself.
HELP = {"--help", "-h", "--hydra-help", "-sc", "--shell-completion", "--info", "-i"}
MULTIRUN = {"--multirun", "-m"}
WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--info", "-i"}
KNOWN = HELP | MULTIRUN | WITH_VALUE | {"--resolve", "--version"}
MOST_JOBS = 1000


def main(arguments: Sequence[str]) -> int:
    """Run the application; returns 0, 1 when the cell failed, 2 for bad input."""
    if list(arguments) in (["--help"], ["-h"]):
        key = compose.hash_of_composer()
        print(disk_cache.compute_once("help", key, lambda: _hydras_help(arguments)), end="")
        return 0
    return _run_application(arguments)


def _hydras_help(arguments: Sequence[str]) -> str:
    """What Hydra prints, for which it reads every file of conf/."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        _run_application(arguments)
    return said.getvalue()


def _run_application(arguments: Sequence[str]) -> int:
    _check_options(arguments)
    overrides = _overrides(arguments)
    if not HELP & {word.partition("=")[0] for word in arguments}:
        _check_cells(overrides, MULTIRUN & set(arguments))
    elif "-sc" not in arguments and "--shell-completion" not in arguments:
        _ = [grammar.parse(text) for text in overrides]
    # The shell completes `capsweep train ...`; Hydra expects the program's name alone before
    # overrides.
    line = os.environ.get("COMP_LINE", "")
    os.environ["COMP_LINE"] = line.replace("capsweep train ", "capsweep ", 1)
    sys.argv = ["capsweep", *map(_as_hydra_reads, arguments), *_folder_of_jobs(arguments)]
    status, failure = 0, None

    @hydra.main(
        config_path=str(package_files.find_folder("conf")), config_name="train", version_base="1.3"
    )
    def application(_: DictConfig) -> None:
        nonlocal status, failure
        try:
            status = max(status, _run(list(HydraConfig.get().overrides.task)))
        except Exception as error:  # which Hydra would print in many lines
            failure = error

    application()
    if failure is not None:
        raise failure
    return status


def _check_options(arguments: Sequence[str]) -> None:
    """Raise ConfigError for what Hydra would answer in many lines, or by another configuration."""
    for word in arguments:
        if word.startswith("-") and word.partition("=")[0] not in KNOWN:
            raise ConfigError(f"{word}: no such option; `capsweep train --help` lists them")
        if word.lstrip("+~").startswith(("hydra/", "hydra.", "hydra=")):
            raise ConfigError(f"{word}: Hydra's own settings are fixed; for many runs, use a sweep")
    words = [word.partition("=")[0] for word in arguments]
    for first, *others in (("--cfg", "-c"), ("--package", "-p")):
        for name in (first, *others):
            if name in words and arguments[-1] == name:
                raise ConfigError(f"{name} needs a value, such as {first} job")
    prints = {"--cfg", "-c"} & set(words)
    if not prints and {"--resolve", "--package", "-p"} & set(words):
        raise ConfigError("--resolve and --package say what --cfg job prints; add that")


def _check_cells(overrides: Sequence[str], many: Set[str]) -> None:
    """Raise ConfigError for what is wrong with the cell, or with any of several jobs."""
    if not many:
        compose.cell(overrides)
        return
    choices = [grammar.parse(text) for text in overrides]
    count = math.prod(len(choice.values) for choice in choices)
    if count > MOST_JOBS:
        raise ConfigError(f"{count:,} jobs are more than {MOST_JOBS:,}; write a sweep")
    for cell in itertools.product(*(choice.split() for choice in choices)):
        compose.cell(cell)


def _folder_of_jobs(arguments: Sequence[str]) -> list[str]:
    """Several jobs have a folder of Hydra's, below the storage where that is a folder."""
    given = [word.partition("=")[2] for word in arguments if word.startswith("places.storage=")]
    storage = (given or [os.environ.get("STORAGE", "")])[-1].strip("'\"")
    if not MULTIRUN & set(arguments) or not is_url(storage):
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
        if not word.startswith("-") and (previous not in WITH_VALUE or "=" in word)
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
    from capsweep.storage.stores import open_store, prove_writable
    from capsweep.sweep.job import Job, run_job
    from capsweep.tracking import mode as modes
    from capsweep.tracking.labels import labels_of
    from capsweep.training import build
    from capsweep.training.run_hooks import RunHooks
    from capsweep.training.size import network_size

    here = places.resolve(cell.config["places"])
    parameters = network_size(cell.config).parameters
    places.prepare(here)
    prove_writable(open_store(here.ledger))
    mode, reason = modes.settle(cell.config)
    build.build_source(cell.config).check(str(here.data))
    epochs = cell.config["epochs"]
    print(f"cell {cell.signature}: {parameters:,} parameters, {epochs} epochs\n{reason}")
    if footnote := cell.config["dataset"].get("footnote"):
        print(f"{cell.config['dataset']['name']}: {footnote}")
    job = Job(modes.settled(cell, mode), labels_of(cell))
    outcome = run_job(job, RunHooks(on_epoch=_print_row))
    if outcome.elsewhere is not None:
        raise UserError(
            f"{outcome.elsewhere}; wait for it, or end it. If that machine is gone: "
            f"capsweep ledger release {cell.signature}"
        )
    if outcome.result is None:
        print(f"error: {outcome.cause or outcome.stop_reason}", file=sys.stderr)
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
