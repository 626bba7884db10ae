"""Data sets of shards: the jobs that make them, and commands that look at their folders."""

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib import import_module, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.errors import ConfigError, DataError, UserError
from capsweep.storage.stores import is_url

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.shards.layout import ShardJob
    from capsweep.shards.manifest import DataSetContent, Manifest

EXAMPLES = 10  # of each split
SHARDS = "multimnist_shards"  # the data set of conf/ that reads MultiMNIST


def load_job_module(name: str) -> Any:
    """`data_prep/NAME.py`. Raises UserError where there is none."""
    import pkgutil

    import data_prep

    names = sorted(module.name for module in pkgutil.iter_modules(data_prep.__path__))
    if not name.isidentifier() or util.find_spec(f"data_prep.{name}") is None:
        raise UserError(f"DATASET={name}: no job makes it; data_prep has {', '.join(names)}")
    return import_module(f"data_prep.{name}")


def prepare_job(
    name: str, overrides: Sequence[str], pairs: int | None, with_sources: bool
) -> "ShardJob":
    """Raises ConfigError naming the key, DataError where the source images are not there."""
    from capsweep.config import compose, places
    from capsweep.data.images import TestedElsewhere
    from capsweep.training import build

    module = load_job_module(name)
    config = compose.cell([f"dataset={name}", *join_overrides(module.OVERRIDES, overrides)]).config
    reader = build.build_reader(config)
    reader = reader.reader if isinstance(reader, TestedElsewhere) else reader
    digits = reader.read(str(places.resolve(config["places"]).data))
    if pairs is not None and pairs < 1:
        raise ConfigError(f"PAIRS must be >= 1, got {pairs}")
    return module.prepare_job(config["dataset"], digits, pairs, with_sources)


def join_overrides(overrides: Sequence[str], later: Sequence[str]) -> list[str]:
    """Overrides, of which a later one of the same key counts."""
    keys = {text.partition("=")[0] for text in later}
    return [*(text for text in overrides if text.partition("=")[0] not in keys), *later]


def read_overrides(parsed: argparse.Namespace) -> list[str]:
    """As typed, and --data-dir as one."""
    from capsweep.config.overrides import render

    data = [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]
    return [*parsed.overrides, *data]


@contextmanager
def progress_bar(console: "Console", total: int) -> Iterator[Callable[[], None]]:
    """A bar of shards, where the terminal can redraw; yields what is called for each."""
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    is_hidden = not console.is_interactive
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        yield partial(progress.advance, progress.add_task("shards", total=total))


def verify_folder(parsed: argparse.Namespace) -> int:
    """`data verify`."""
    from capsweep.shards import verify
    from capsweep.shards.manifest import read_manifest

    if parsed.again is None and (parsed.data_dir or parsed.overrides):
        raise UserError("--data-dir and overrides belong to --again")
    count: int = 0 if parsed.again is None else parsed.again
    if parsed.again is not None and count < 1:
        raise UserError(f"--again must be >= 1, got {count}")
    manifest = read_manifest(parsed.path)
    # Who has to name a source does not wait for the hashes of a large data set.
    job = _prepare_again(parsed, manifest) if count else None
    with progress_bar(terminal.make_console(stderr=True), len(manifest.shards)) as advance:
        faults = verify.verify_files(parsed.path, manifest, advance)
    compared = 0
    if job is not None:
        damaged = {fault.file for fault in faults}
        more, compared = verify.compare_with_source(parsed.path, manifest, job, count, damaged)
        faults += more
    console = terminal.make_console()
    for line in (*map(str, faults), *verify.describe_cures(faults)):
        terminal.print_line(console, line)
    again = f"; {compared:,} examples made again and compared" if compared else ""
    files = len({fault.file for fault in faults})
    verdict = f"{len(faults)} faults in {files} files" if files else "whole"
    read = f"{len(manifest.shards):,} shards, all read{again}"
    terminal.print_line(console, f"{parsed.path}: {verdict} ({manifest.content.dataset}, {read})")
    return 1 if faults else 0


def _prepare_again(parsed: argparse.Namespace, manifest: "Manifest") -> "ShardJob":
    """The job that a manifest describes, prepared from the source images of this machine.

    Raises DataError where it would make other examples.
    """
    from capsweep.config.cell import flat
    from capsweep.config.overrides import render
    from capsweep.shards.making_plan import describe_difference

    content = manifest.content
    module = load_job_module(content.dataset)
    if unknown := sorted(set(content.settings) - set(module.SETTINGS)):
        raise DataError(
            f"{content.dataset}: settings that this program does not know ({', '.join(unknown)}); "
            "use the version of capsweep that made the data set"
        )
    given = [render(module.SETTINGS[key], value) for key, value in content.settings.items()]
    overrides = join_overrides(
        [f"dataset.source={content.origin.name}", *given], read_overrides(parsed)
    )
    with_sources = "digits" in manifest.fields
    once = prepare_job(content.dataset, overrides, 1, with_sources)
    pairs = max(1, content.splits.get("test", 0) // max(1, once.content.splits.get("test", 0)))
    job = prepare_job(content.dataset, overrides, pairs, with_sources)
    if job.content != content:
        difference = describe_difference(flat(asdict(content)), flat(asdict(job.content)))
        raise DataError(
            f"{content.dataset}: the source that is read here makes other examples "
            f"({difference}); set --data-dir to the files that the "
            "data set was made of, and use the version of capsweep that made it"
        )
    return job


def describe_folder(parsed: argparse.Namespace) -> int:
    """`data info`."""
    from capsweep.report import grid
    from capsweep.shards.manifest import read_manifest

    manifest = read_manifest(parsed.path)
    train = train_command(parsed.path, manifest.content, find_data(read_overrides(parsed)))
    picture = parsed.picture or Path(f"{parsed.path.resolve().name or 'shards'}-examples.png")
    _write_picture(parsed.path, manifest, picture)
    console = terminal.make_console()
    for line in _describe_manifest(parsed.path, manifest):
        terminal.print_line(console, line)
    header, rows = ("split", "examples", "shards", "bytes"), []
    for split, examples in manifest.content.splits.items():
        sizes = [shard.bytes for shard in manifest.shards_of(split)]
        rows.append((split, f"{examples:,}", f"{len(sizes):,}", f"{sum(sizes):,}"))
    terminal.print_table(console, grid.grid_terminal(None, header, rows))
    header, rows = ("field", "dtype", "shape"), []
    for name, (dtype, shape) in manifest.fields.items():
        rows.append((name, dtype, "x".join(map(str, shape)) or "one number"))
    terminal.print_table(console, grid.grid_terminal(None, header, rows))
    terminal.print_line(console, f"train on it: {train or 'no data set of conf/ reads it'}")
    terminal.print_line(console, f"picture:     {picture.resolve()}")
    return 0


def _describe_manifest(folder: Path, manifest: "Manifest") -> Iterator[str]:
    content = manifest.content
    settings = ", ".join(f"{key} {value}" for key, value in content.settings.items())
    yield f"data set:    {content.dataset} of {content.origin.name}"
    yield f"folder:      {folder}"
    yield f"fingerprint: {content.fingerprint}"
    yield f"origin:      sha256 {content.origin.sha256}"
    yield f"settings:    {settings or 'none'}; generator version {content.version}"
    yield f"stored:      {sum(shard.bytes for shard in manifest.shards):,} bytes"


def find_data(overrides: Sequence[str]) -> str:
    """Where all data sets are, absolute or a URL, by the overrides of places among others."""
    from capsweep.config import compose

    return compose.cell([t for t in overrides if t.startswith("places.")]).config["places"]["data"]


def train_command(folder: Path, content: "DataSetContent", data: str) -> str | None:
    """`capsweep train ...` on MultiMNIST in a folder; None for other data sets.

    data: of all data sets.
    """
    from capsweep.config.overrides import render
    from capsweep.shards.layout import MULTIMNIST

    if content.dataset != MULTIMNIST:
        return None
    try:
        words = [f"dataset={SHARDS}", *_declare_pairs(content), render("places.data", data)]
    except ConfigError:  # of digits that this program does not know
        return None
    place = folder.resolve()
    if is_url(data) or place != Path(data, content.dataset).resolve():
        words.append(render("dataset.shards.folders", [str(place)]))
    return shlex.join(["capsweep", "train", *words])


def _declare_pairs(content: "DataSetContent") -> list[str]:
    """The overrides that declare a data set, its images and the number of its examples."""
    from capsweep.config import compose
    from capsweep.config.overrides import render
    from capsweep.shards.reader import declare_data_set

    words = declare_data_set(content)
    dataset = compose.cell([f"dataset={SHARDS}", *words]).config["dataset"]
    digit = compose.cell([f"dataset={content.origin.name}"]).config["dataset"]["image_shape"]
    margin = int(content.settings["margin"])
    shape = [digit[0], *(side + 2 * margin for side in digit[1:])]
    if shape != list(dataset["image_shape"]):
        words.append(render("dataset.image_shape", shape))
    if (tests := content.splits.get("test", 0)) < dataset["batches"]["test_examples"]:
        words.append(f"dataset.batches.test_examples={tests}")
    return words


def _write_picture(folder: Path, manifest: "Manifest", path: Path) -> None:
    """The first examples of each split as a PNG."""
    import numpy as np

    from capsweep.evaluation import pictures
    from capsweep.shards.groups import read_range
    from capsweep.shards.reader import StoredRanges
    from capsweep.storage.files import write_atomically

    if path.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"--picture {path}: lies in the data set's folder, where it would be a surplus file; "
            "name another place"
        )
    content = manifest.content
    count = min(EXAMPLES, *content.splits.values())
    tiles_RKHW3, below = [], []
    for split in content.splits:
        stored = StoredRanges(folder, manifest, split, ["images", "labels"])
        arrays = read_range(stored, 0, count)
        tiles_RKHW3.append(pictures.to_rgb(arrays["images"] / 255))
        labels_KL = arrays["labels"].reshape(count, -1)
        below.append([", ".join(map(str, labels_L)) for labels_L in labels_KL])
    grid = pictures.Grid(
        np.stack(tiles_RKHW3),
        list(content.splits),
        [f"example {k}" if k == 0 else str(k) for k in range(count)],
        f"{content.dataset} of {content.origin.name}",
        "The first examples of each split, below each its class. Fingerprint "
        f"{content.fingerprint}.",
        below=below,
    )
    write_atomically(path, lambda file: file.write(pictures.draw_grid(grid)))
