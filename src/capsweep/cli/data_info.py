"""`capsweep data info`: what a folder of shards holds, its first examples, how to train on it."""

import argparse
import io
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli.command import Commands, add_command
from capsweep.errors import ConfigError, UserError
from capsweep.storage.stores import is_url

if TYPE_CHECKING:
    import numpy as np

    from capsweep.shards.manifest import Content, Manifest

TEXT = "print what a data set of shards holds, and draw its first examples"
EXAMPLES = 10  # of each split
SHARDS = "multimnist_shards"  # the data set of conf/ that reads MultiMNIST


def add_parser(commands: Commands) -> None:
    """Add `info` to the parser."""
    info = add_command(commands, "info", _info, TEXT)
    info.add_argument("path", type=Path, help="the data set's folder, with its index.json")
    info.add_argument("overrides", nargs="*", help="Hydra overrides of places")
    picture = "a PNG; default: NAME-examples.png here, and none with --json"
    info.add_argument("--picture", type=Path, metavar="FILE", help=picture)
    info.add_argument("--data-dir", help="where all data sets are")
    info.add_argument("--json", action="store_true", help="for programs")


def _info(parsed: argparse.Namespace) -> int:
    from capsweep.config.overrides import render
    from capsweep.report import grid

    manifest = read_finished(parsed.path)
    data = [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]
    train = train_command(parsed.path, manifest.content, data_place([*parsed.overrides, *data]))
    picture = parsed.picture
    if picture is None and not parsed.json:
        picture = Path(f"{parsed.path.resolve().name or 'shards'}-examples.png")
    if picture is not None:
        _write_picture(parsed.path, manifest, picture)
    facts = _collect_facts(parsed.path, manifest)
    if parsed.json:
        print(json.dumps({**facts, "train": train, "picture": picture and str(picture)}, indent=1))
        return 0
    console = terminal.make_console()
    for line in _describe_facts(facts):
        terminal.print_line(console, line)
    rows = [(s, *(f"{n:,}" for n in counts.values())) for s, counts in facts["splits"].items()]
    terminal.print_table(
        console, grid.grid_terminal(None, ("split", "examples", "shards", "bytes"), rows)
    )
    rows = [
        (
            name,
            field["dtype"],
            "x".join(map(str, field["shape"])) or "one number",
            f"{field['bytes']:,}",
        )
        for name, field in facts["fields"].items()
    ]
    header = ("field", "dtype", "shape", "bytes of one")
    terminal.print_table(console, grid.grid_terminal(None, header, rows))
    terminal.print_line(console, f"train on it: {train or 'no data set of conf/ reads it'}")
    terminal.print_line(console, f"picture:     {picture and picture.resolve()}")
    return 0


def _describe_field(name: str, field: Mapping[str, Any]) -> tuple[str, ...]:
    shape = "x".join(map(str, field["shape"])) or "one number"
    return name, field["dtype"], shape, f"{field['bytes']:,}"


def read_finished(folder: Path) -> "Manifest":
    """The manifest of a folder. Raises UserError with the command that goes on where shards are
    missing, DataError for a damaged manifest.
    """
    from capsweep.shards import making_plan
    from capsweep.shards.manifest import INDEX, read_manifest

    if not (folder / INDEX).exists() and (state := making_plan.read_state(folder)) is not None:
        raise UserError(f"{folder}: unfinished; this goes on: {state['command']}")
    return read_manifest(folder)


def _collect_facts(folder: Path, manifest: "Manifest") -> Mapping[str, Any]:
    import numpy as np

    content = manifest.content
    splits = {
        split: {
            "examples": examples,
            "shards": len(manifest.shards_of(split)),
            "bytes": sum(shard.bytes for shard in manifest.shards_of(split)),
        }
        for split, examples in content.splits.items()
    }
    fields = {
        name: {
            "dtype": dtype,
            "shape": shape,
            "bytes": np.dtype(dtype).itemsize * math.prod(shape),
        }
        for name, (dtype, shape) in manifest.fields.items()
    }
    return {
        "path": str(folder),
        **asdict(content),
        "fingerprint": content.fingerprint,
        "splits": splits,
        "fields": fields,
        "bytes": sum(shard.bytes for shard in manifest.shards),
    }


def _describe_facts(facts: Mapping[str, Any]) -> Iterator[str]:
    settings = ", ".join(f"{key} {value}" for key, value in facts["settings"].items())
    yield f"data set:    {facts['dataset']} of {facts['origin']['name']}"
    yield f"folder:      {facts['path']}"
    yield f"fingerprint: {facts['fingerprint']}"
    yield f"origin:      sha256 {facts['origin']['sha256']}"
    yield f"settings:    {settings or 'none'}; generator version {facts['version']}"
    yield f"stored:      {facts['bytes']:,} bytes"


def data_place(overrides: Sequence[str]) -> str:
    """Where all data sets are, absolute or a URL, by the overrides of places among others."""
    from capsweep.config import compose

    return compose.cell([t for t in overrides if t.startswith("places.")]).config["places"]["data"]


def train_command(folder: Path, content: "Content", data: str) -> str | None:
    """`capsweep train ...` on MultiMNIST in a folder; None for other data sets.

    data: of all data sets.
    """
    from capsweep.config.overrides import render
    from capsweep.shards import pair_examples

    if content.dataset != pair_examples.DATASET:
        return None
    try:
        words = [f"dataset={SHARDS}", *_declare_pairs(content), render("places.data", data)]
    except ConfigError:  # of digits that this program does not know
        return None
    place = folder.resolve()
    if is_url(data) or place != Path(data, content.dataset).resolve():
        words.append(render("dataset.shards.folders", [str(place)]))
    return shlex.join(["capsweep", "train", *words])


def _declare_pairs(content: "Content") -> list[str]:
    """The overrides that declare a data set, its images and the number of its examples."""
    from capsweep.config import compose
    from capsweep.config.overrides import render
    from capsweep.shards.reader import declaring_overrides

    words = declaring_overrides(content)
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
    """The first examples of each split as a PNG. Raises UserError."""
    from capsweep.storage.files import write_atomically

    if path.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"--picture {path}: lies in the data set's folder, where it would be a surplus file; "
            "name another place"
        )
    png = _draw_examples(folder, manifest)
    try:
        write_atomically(path, lambda file: file.write(png))
    except OSError as error:
        raise UserError(
            f"--picture {path}: cannot be written ({error.strerror}); name another place"
        ) from error


def _draw_examples(folder: Path, manifest: "Manifest") -> bytes:
    import numpy as np

    from capsweep.evaluation import picture_grid
    from capsweep.shards.stored_ranges import StoredRanges

    tiles_RKHW3, beside, below = [], [], []
    for split in manifest.content.splits:
        stored = StoredRanges(folder, manifest, split)
        arrays = _read_first(stored)
        labels_KL = arrays["labels"].reshape(len(arrays["labels"]), -1)
        rows = [("", arrays["images"], [", ".join(map(str, labels_L)) for labels_L in labels_KL])]
        for place in range(2 if "digits" in arrays else 0):
            texts = [str(label) for label in labels_KL[:, place]]
            rows.append((("below", "on top")[place], arrays["digits"][:, place], texts))
        for name, images_KCHW, texts in rows:
            shown = picture_grid.rgb(images_KCHW / 255)
            missing = EXAMPLES - len(shown)
            tiles_RKHW3.append(
                np.concatenate([shown, np.full((missing, *shown.shape[1:]), np.nan)])
            )
            beside.append(f"{split} {name}".strip())
            below.append([*texts, *[""] * missing])
    content, file = manifest.content, io.BytesIO()
    grid = picture_grid.Grid(
        np.stack(tiles_RKHW3),
        beside,
        [f"example {k}" if k == 0 else str(k) for k in range(EXAMPLES)],
        f"{content.dataset} of {content.origin.name}",
        "The first examples of each split, below each its class. Fingerprint "
        f"{content.fingerprint}.",
        below=below,
    )
    picture_grid.draw(grid, file)
    return file.getvalue()


def _read_first(stored: Any) -> "Mapping[str, np.ndarray]":
    from capsweep.shards.ranges import read_range

    return read_range(stored, 0, min(EXAMPLES, len(stored)))
