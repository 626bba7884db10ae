"""`capsweep data verify`: every file that is missing, truncated, altered or surplus."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli.command import Commands, add_command
from capsweep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capsweep.data.shards.manifest import Content, Manifest, Shard
    from capsweep.data_prep.checking.unfinished import Unfinished
    from capsweep.data_prep.checking.verify import Checked, Describe
    from capsweep.data_prep.job import Job

TEXT = "name every missing, truncated, altered or surplus file; status 1 when there is one"
SAMPLE = "4000"


def add(commands: Commands) -> None:
    """Add `verify` to the parser."""
    verify = add_command(commands, "verify", _verify, TEXT)
    verify.add_argument("path", type=Path, help="the data set's folder, with its index.json")
    verify.add_argument(
        "overrides", nargs="*", help="of --deep: Hydra overrides, as data make was given them"
    )
    verify.add_argument(
        "--deep", action="store_true", help="make a sample of the examples again, and compare"
    )
    verify.add_argument(
        "--sample", metavar="N", help=f"of --deep: so many examples ({SAMPLE}), or a share: 100%%"
    )
    verify.add_argument("--data-dir", help="of --deep: where the source images are")
    verify.add_argument("--json", action="store_true", help="for programs")


def _verify(parsed: argparse.Namespace) -> int:
    from capsweep.data.shards import manifest
    from capsweep.data.shards.described import disagreements
    from capsweep.data_prep.checking import unfinished

    if not parsed.deep and (parsed.sample or parsed.data_dir or parsed.overrides):
        raise UserError("--sample, --data-dir and overrides belong to --deep")
    if (begun := unfinished.find(parsed.path)) is not None:
        return _verify_unfinished(parsed, begun)
    found = manifest.read(parsed.path)
    # First of all: who has to name a source shall not wait for the hashes of a large data set.
    job, count = _deep(parsed, found) if parsed.deep else (None, 0)
    checked = _checked(parsed.path, found.shards, lambda f, s: disagreements(f, found, s))
    compared = None
    if job is not None:
        checked, compared = _compared(parsed.path, found, job, count, checked)
    if parsed.json:
        told = _plain(parsed.path, found.content, found.store, len(found.shards), checked)
        print(json.dumps(told | {"compared": compared}, indent=1))
    else:
        _tell(parsed.path, found, checked, compared)
    return 1 if checked.faults else 0


def _verify_unfinished(parsed: argparse.Namespace, begun: "Unfinished") -> int:
    """What is there is checked as far as it is known: no manifest describes it yet."""
    checked = _checked(parsed.path, begun.shards, lambda file, shard: ())
    there = f"{len(begun.shards)} of {begun.wanted} shards are recorded as finished"
    if parsed.json:
        told = _plain(parsed.path, begun.content, begun.store, len(begun.shards), checked)
        more = {"wanted": begun.wanted, "command": begun.command, "whole": False}
        print(json.dumps(told | more, indent=1))
        return 1
    console = terminal.console()
    for line in _of(checked):
        terminal.line(console, line)
    terminal.line(console, f"{parsed.path}: unfinished: {there}, and index.json is not written")
    terminal.line(console, f"this goes on: {begun.command}")
    return 1


def _deep(parsed: argparse.Namespace, found: "Manifest") -> "tuple[Job, int]":
    from capsweep.data_prep.checking import again, deep

    count = deep.count_of(parsed.sample or SAMPLE, sum(found.content.splits.values()))
    return again.job(found, parsed.data_dir, parsed.overrides), count


def _checked(folder: Path, shards: "Sequence[Shard]", describe: "Describe") -> "Checked":
    from capsweep.data_prep.checking.bytes_progress import BytesProgress
    from capsweep.data_prep.checking.verify import verify

    total = sum(shard.bytes for shard in shards)
    with BytesProgress(terminal.console(stderr=True), total) as progress:
        return verify(folder, shards, describe, progress.advance)


def _compared(
    folder: Path, found: "Manifest", job: "Job", count: int, checked: "Checked"
) -> "tuple[Checked, int]":
    from capsweep.data_prep.checking import deep

    without = frozenset(fault.file for fault in checked.faults)
    faults, compared = deep.compare(folder, found, job, count, without)
    return replace(checked, faults=(*checked.faults, *faults)), compared


def _plain(
    folder: Path, content: "Content", store: str, shards: int, checked: "Checked"
) -> dict[str, Any]:
    """For programs."""
    return {
        "path": str(folder),
        "whole": not checked.faults,
        "dataset": content.dataset,
        "fingerprint": content.fingerprint,
        "store": store,
        "shards": shards,
        "bytes": checked.bytes,
        "seconds": round(checked.seconds, 3),
        "faults": [asdict(fault) for fault in checked.faults],
    }


def _tell(folder: Path, found: "Manifest", checked: "Checked", compared: int | None) -> None:
    console = terminal.console()
    for line in _of(checked):
        terminal.line(console, line)
    deep = f"; {compared:,} examples made again and compared" if compared else ""
    said = f"{len(found.shards):,} shards, all read{deep}"
    if found.store == "virtual":
        deep = "; it is of the source that is read here" if compared is not None else ""
        said = f"virtual: there is nothing to read, only index.json, which is whole{deep}"
    files = len({fault.file for fault in checked.faults})
    verdict = f"{len(checked.faults)} faults in {files} files" if files else "whole"
    terminal.line(console, f"{folder}: {verdict} ({found.content.dataset}, {said})")


def _of(checked: "Checked") -> "Iterator[str]":
    """Every fault, what to do, and how fast that was known."""
    yield from map(str, checked.faults)
    yield from checked.cures()
    if checked.bytes:
        speed = checked.bytes / checked.seconds / 1e9
        yield f"{checked.bytes:,} bytes read in {checked.seconds:.1f} s ({speed:.2f} GB/s)"
