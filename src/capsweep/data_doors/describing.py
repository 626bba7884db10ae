"""`capsweep data info`: what a folder of shards holds."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli.command import Commands, add_command
from capsweep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capsweep.data.shards.manifest import Manifest

TEXT = "print what a data set of shards holds, and draw its first examples"


def add(commands: Commands) -> None:
    """Add `info` to the parser."""
    info = add_command(commands, "info", _info, TEXT)
    info.add_argument("path", type=Path, help="the data set's folder, with its index.json")
    info.add_argument(
        "overrides", nargs="*", help="Hydra overrides of the source, as data make was given them"
    )
    info.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="a PNG; default: NAME-examples.png here, and none with --json",
    )
    info.add_argument("--data-dir", help="where source images are, for what is not stored")
    info.add_argument("--json", action="store_true", help="for programs")


def _info(parsed: argparse.Namespace) -> int:
    from capsweep.config.overrides import render
    from capsweep.data.shards import manifest
    from capsweep.data_prep import train_command
    from capsweep.data_prep.checking import describe, unfinished

    if (begun := unfinished.find(parsed.path)) is not None:
        raise UserError(
            f"{parsed.path}: unfinished, {len(begun.shards)} of {begun.wanted} shards are there; "
            f"this goes on: {begun.command}"
        )
    found = manifest.read(parsed.path)
    given = [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]
    data = train_command.data_place([*parsed.overrides, *given])
    told = describe.plain(parsed.path, found, data)
    said = _picture(parsed, found)
    if parsed.json:
        print(json.dumps(told | {"picture": said and str(parsed.picture)}, indent=1))
    else:
        _tell(told, said)
    return 0


def _tell(told: "Mapping[str, Any]", picture: str | None) -> None:
    from capsweep.data_prep.checking import describe
    from capsweep.report import grid

    console = terminal.console()
    for line in describe.lines(told):
        terminal.line(console, line)
    header = ("split", "examples", "shards", "bytes")
    terminal.show(console, grid.terminal(None, header, describe.split_rows(told)))
    if told["fields"]:
        header = ("field", "dtype", "shape", "bytes of one")
        terminal.show(console, grid.terminal(None, header, describe.field_rows(told)))
    terminal.line(console, f"train on it: {told['train'] or 'no data set of conf/ reads it'}")
    terminal.line(console, f"picture:     {picture}")


def _picture(parsed: argparse.Namespace, found: "Manifest") -> str | None:
    """Where it is drawn; or why there is none, where none was asked for. Raises UserError."""
    if parsed.picture is not None:
        return str(_drawn(parsed, found, parsed.picture))
    if parsed.json:
        return None
    folder = parsed.path.resolve()
    try:
        return str(_drawn(parsed, found, Path(f"{folder.name or 'shards'}-examples.png")))
    except UserError as error:
        return f"none: {error}"


def _drawn(parsed: argparse.Namespace, found: "Manifest", path: Path) -> Path:
    from capsweep.data_prep.checking import picture
    from capsweep.files import write_atomically

    if path.resolve().is_relative_to(parsed.path.resolve()):
        raise UserError(
            f"--picture {path}: lies in the data set's folder, where it would be a surplus file; "
            "name another place"
        )
    png = picture.draw(parsed.path, found, parsed.data_dir, parsed.overrides)
    try:
        write_atomically(path, lambda file: file.write(png))
    except OSError as error:
        raise UserError(
            f"--picture {path}: cannot be written ({error.strerror}); name another place"
        ) from error
    return path.resolve()
