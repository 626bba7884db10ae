"""`capsweep data verify`: every file that is missing, truncated, altered or surplus."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.command import Commands, add_command
from capsweep.errors import UserError

if TYPE_CHECKING:
    from capsweep.data.shards.manifest import Manifest
    from capsweep.data_prep.job import Job
    from capsweep.data_prep.verify import Checked

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

    if not parsed.deep and (parsed.sample or parsed.data_dir or parsed.overrides):
        raise UserError("--sample, --data-dir and overrides belong to --deep")
    found = manifest.read(parsed.path)
    # First of all: who has to name a source shall not wait for the hashes of a large data set.
    job, count = _deep(parsed, found) if parsed.deep else (None, 0)
    checked = _checked(parsed.path, found)
    compared = None
    if job is not None:
        checked, compared = _compared(parsed.path, found, job, count, checked)
    told = _plain(parsed.path, found, checked, compared)
    if parsed.json:
        print(json.dumps(told, indent=1))
    else:
        _tell(parsed.path, found, checked, compared)
    return 1 if checked.faults else 0


def _deep(parsed: argparse.Namespace, found: "Manifest") -> "tuple[Job, int]":
    from capsweep.data_prep import again, deep

    count = deep.count_of(parsed.sample or SAMPLE, sum(found.content.splits.values()))
    return again.job(found, parsed.data_dir, parsed.overrides), count


def _checked(folder: Path, found: "Manifest") -> "Checked":
    from capsweep.data.shards.described import disagreements
    from capsweep.data_prep.bytes_progress import BytesProgress
    from capsweep.data_prep.verify import verify

    total = sum(shard.bytes for shard in found.shards)
    with BytesProgress(terminal.console(stderr=True), total) as progress:
        return verify(
            folder,
            found.shards,
            lambda file, shard: disagreements(file, found, shard),
            advance=progress.advance,
        )


def _compared(
    folder: Path, found: "Manifest", job: "Job", count: int, checked: "Checked"
) -> "tuple[Checked, int]":
    from capsweep.data_prep import deep

    without = frozenset(fault.file for fault in checked.faults)
    faults, compared = deep.compare(folder, found, job, count, without)
    return replace(checked, faults=(*checked.faults, *faults)), compared


def _plain(
    folder: Path, found: "Manifest", checked: "Checked", compared: int | None
) -> dict[str, Any]:
    """For programs."""
    return {
        "path": str(folder),
        "whole": not checked.faults,
        "dataset": found.content.dataset,
        "fingerprint": found.content.fingerprint,
        "store": found.store,
        "shards": len(found.shards),
        "bytes": checked.bytes,
        "seconds": round(checked.seconds, 3),
        "compared": compared,
        "faults": [asdict(fault) for fault in checked.faults],
    }


def _tell(folder: Path, found: "Manifest", checked: "Checked", compared: int | None) -> None:
    console = terminal.console()
    for fault in checked.faults:
        terminal.line(console, str(fault))
    if found.store == "virtual":
        said = "a virtual data set: nothing is stored that could be altered"
    else:
        speed = checked.bytes / max(checked.seconds, 1e-9) / 1e9
        said = (
            f"{len(found.shards)} shards, {checked.bytes:,} bytes read in {checked.seconds:.1f} s "
            f"({speed:.2f} GB/s)"
        )
    terminal.line(console, f"{folder}: {found.content.dataset}, {said}")
    if compared is not None and found.store == "virtual":
        terminal.line(console, "deep: the source that is read here is that of the data set")
    elif compared is not None:
        terminal.line(console, f"deep: {compared:,} examples made again and compared")
    files = len({fault.file for fault in checked.faults})
    terminal.line(console, f"{len(checked.faults)} faults in {files} files" if files else "whole")
    for cure in checked.cures():
        terminal.line(console, cure)
