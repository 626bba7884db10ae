"""`capsweep train`: train one cell."""

import argparse
import sys

import yaml

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.config.overrides import expand_word, list_groups, list_options
from capsweep.errors import UserError
from capsweep.runtime.terminal import count_of, format_command
from capsweep.storage.stores import join


def run_train(parsed: argparse.Namespace) -> int:
    """Train one cell; with --cfg, only print its settings.

    Returns:
        0, or 1 if the cell failed or was paused.

    Raises:
        UserError: A word or override is wrong, or another process runs the cell.
    """
    typed = [expand_word(name, value) for name, value in parsed.words.items()]
    cell = compose.cell([*parsed.overrides, *typed])
    if parsed.cfg is None:
        return _run_cell(cell)
    print(_as_yaml(cell), end="")
    return 0


def describe_settings() -> str:
    """Return the groups with their options, and the keys with their default values, for --help."""
    groups = "".join(f"  {name}: {', '.join(list_options(name))}\n" for name in list_groups())
    keys = _as_yaml(compose.cell([]))
    return f"\ngroups, chosen by group=option:\n{groups}\nkeys, set by key.path=value:\n{keys}"


def _as_yaml(cell: Cell) -> str:
    return yaml.safe_dump(dict(cell.config), sort_keys=False, allow_unicode=True)


def _run_cell(cell: Cell) -> int:
    """Train a cell, print its epochs and results, and return the exit status."""
    from capsweep.ledger import listing
    from capsweep.ledger.ledger import Ledger, folder_of
    from capsweep.sweep import plan
    from capsweep.sweep.drive import prepare_storage
    from capsweep.tracking import mode as modes
    from capsweep.tracking.content import make_labels
    from capsweep.training import RunHooks, build, devices
    from capsweep.training.run import Job, run_job
    from capsweep.training.size import measure_size

    node_places = places.resolve(cell.config["places"])
    parameters = measure_size(cell.config).parameters
    devices.prepare_device(cell.config)  # raises before data is read
    ledger = Ledger(node_places.ledger)
    prepare_storage(node_places, ledger)
    mode, reason = modes.decide_mode(cell.config)
    build.build_source(cell.config).check(str(node_places.data))
    dataset, epochs = cell.config["dataset"], cell.config["epochs"]
    print(
        f"cell {cell.signature}: {parameters:,} parameters, {count_of(epochs, 'epoch')}\n{reason}"
    )
    if "footnote" in dataset:
        print(f"{dataset['name']}: {dataset['footnote']}")
    start = plan.find_start(cell, ledger, {*ledger.list_signatures()})
    for line in plan.describe_starts([start]):
        print(line)
    job = Job(cell.with_mode(mode), make_labels(cell), shorter=start.signature)
    outcome = run_job(job, RunHooks(on_epoch=_print_row))
    if outcome.elsewhere is not None:
        place = f"LEDGER={ledger.store.root}"
        cure = format_command("ledger", "release", cell.signature, place)
        raise UserError(f"{outcome.elsewhere}; wait for it, or if its machine is gone: {cure}")
    if outcome.result is None:
        print(f"error: {outcome.cause or outcome.paused}", file=sys.stderr)
        if outcome.cause is not None:
            why = listing.format_show(ledger, cell.signature)
            print(f"  why: {why}", file=sys.stderr)
        return 1
    print("  ".join(f"{key} {value:.4g}" for key, value in outcome.result["metrics"].items()))
    print(f"results: {join(node_places.ledger, folder_of(cell.signature))}")
    return 0


def _print_row(row: dict) -> None:
    values = [f"{key} {value:.4g}" for key, value in row.items() if key not in ("epoch", "step")]
    print(f"epoch {row['epoch']}:  {'  '.join(values)}", flush=True)
