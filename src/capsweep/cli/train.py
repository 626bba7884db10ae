"""`capsweep train`: train one cell.

Hydra is used only to print the help and the configuration (`--cfg`), and to complete overrides in a
shell. Except for a completion, capsweep first composes the typed overrides itself, because the
errors of capsweep are one line and name the key.
"""

import os
import sys
from collections.abc import Sequence

import hydra

from capsweep.config import compose, package_files, places
from capsweep.config.cell import Cell
from capsweep.config.overrides import expand_word, with_slashes
from capsweep.config.words import split_words
from capsweep.errors import ConfigError, UserError
from capsweep.runtime.terminal import count_of, format_command
from capsweep.storage.stores import join

COMPLETION = {"-sc", "--shell-completion"}
CONFIG, CONFIG_VALUES = {"--cfg", "-c"}, {"job", "hydra", "all"}  # options that print settings
OPTIONS = COMPLETION | CONFIG | {"--help", "-h", "--resolve"}


def main(arguments: Sequence[str]) -> int:
    """Train one cell, or let Hydra print help, completions or a configuration.

    Args:
        arguments: The command line after `capsweep train`.

    Returns:
        0, or 1 if the cell failed or was paused.

    Raises:
        UserError: An option, word or override is wrong, or another process runs the cell.
    """
    typed, arguments = split_words("train", list(arguments))
    arguments += [expand_word(name, value) for name, value in typed.items()]
    options = {word.partition("=")[0] for word in arguments if word.startswith("-")}
    _check_arguments(arguments, options)
    if not options & COMPLETION:
        values = CONFIG_VALUES if options & CONFIG else ()
        words = [word for word in arguments if not word.startswith("-") and word not in values]
        cell = compose.cell(words)
        if not options:
            return _run_cell(cell)
    # The shell completes `capsweep train ...`. Hydra expects only the program's name before the
    # overrides.
    line = os.environ.get("COMP_LINE", "")
    os.environ["COMP_LINE"] = line.replace("capsweep train ", "capsweep ", 1)
    # A group within a group may be typed with a dot, which Hydra would read as a key.
    pairs = [word.partition("=") for word in arguments]
    sys.argv = ["capsweep", *(f"{with_slashes(key)}{eq}{value}" for key, eq, value in pairs)]
    # Hydra must be given a function to call, but it only prints here.
    conf = str(package_files.find_folder("conf"))
    hydra.main(config_path=conf, config_name="train", version_base="1.3")(lambda config: None)()
    return 0


def _check_arguments(arguments: Sequence[str], options: set[str]) -> None:
    """Raise ConfigError for options that are unknown, and for settings of Hydra itself.

    For an unknown option, Hydra would print an error of many lines. With settings of Hydra itself,
    Hydra would use another configuration.
    """
    for option in options - OPTIONS:
        cure = "`capsweep train --help` lists the options; for many runs, use capsweep sweep"
        raise ConfigError(f"{option}: no such option; {cure}")
    for word in arguments:
        if word.lstrip("+~").startswith(("hydra/", "hydra.", "hydra=")):
            raise ConfigError(f"{word}: the settings of Hydra itself are fixed; leave this out")
    if "--resolve" in options and not options & CONFIG:
        raise ConfigError("--resolve needs --cfg: type --cfg job --resolve")


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
