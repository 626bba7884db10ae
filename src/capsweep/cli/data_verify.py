"""`capsweep data verify`: every file that is missing, truncated, altered or surplus."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep import terminal
from capsweep.cli.command import Commands, add_command
from capsweep.cli.data_info import read_finished
from capsweep.cli.data_jobs import join_overrides, load_job_module, prepare_job, read_overrides
from capsweep.errors import DataError, UserError

if TYPE_CHECKING:
    from capsweep.shards.job import Job
    from capsweep.shards.manifest import Content, Manifest

TEXT = "name every missing, truncated, altered or surplus file; status 1 when there is one"


def add_parser(commands: Commands) -> None:
    """Add `verify` to the parser."""
    verify = add_command(commands, "verify", _verify, TEXT)
    verify.add_argument("path", type=Path, help="the data set's folder, with its index.json")
    verify.add_argument(
        "overrides", nargs="*", help="of --again: Hydra overrides, as data make was given them"
    )
    verify.add_argument("--again", type=int, metavar="N", help="make N examples anew, and compare")
    verify.add_argument("--data-dir", help="of --again: where the source images are")
    verify.add_argument("--json", action="store_true", help="for programs")
    verify.add_argument("--deep", action="store_true", default=None, help=argparse.SUPPRESS)
    verify.add_argument("--sample", help=argparse.SUPPRESS)


def _verify(parsed: argparse.Namespace) -> int:
    from capsweep.shards import verify
    from capsweep.shards.layout import find_disagreements
    from capsweep.shards.progress import CountProgress

    if parsed.deep or parsed.sample:
        raise UserError("--deep, --sample: use --again N: N examples are made anew and compared")
    if parsed.again is None and (parsed.data_dir or parsed.overrides):
        raise UserError("--data-dir and overrides belong to --again")
    if parsed.again is not None and parsed.again < 1:
        raise UserError(f"--again must be >= 1, got {parsed.again}")
    manifest = read_finished(parsed.path)
    # Who has to name a source does not wait for the hashes of a large data set.
    job = None if parsed.again is None else _prepare_again(parsed, manifest)
    size = sum(shard.bytes for shard in manifest.shards)
    with CountProgress(terminal.make_console(stderr=True), size, "bytes") as progress:
        faults = verify.verify_files(
            parsed.path,
            manifest.shards,
            lambda file, shard: find_disagreements(file, manifest, shard),
            progress.advance,
        )
    compared = None
    if job is not None and parsed.again is not None:
        damaged = frozenset(fault.file for fault in faults)
        more, compared = verify.compare_with_source(
            parsed.path, manifest, job, parsed.again, damaged
        )
        faults += more
    if parsed.json:
        told = {"path": str(parsed.path), "whole": not faults, "dataset": manifest.content.dataset}
        told |= {"fingerprint": manifest.content.fingerprint, "shards": len(manifest.shards)}
        told |= {"faults": [asdict(fault) for fault in faults], "compared": compared}
        print(json.dumps(told, indent=1))
        return 1 if faults else 0
    console = terminal.make_console()
    for line in (*map(str, faults), *verify.describe_cures(faults)):
        terminal.print_line(console, line)
    again = f"; {compared:,} examples made again and compared" if compared else ""
    files = len({fault.file for fault in faults})
    verdict = f"{len(faults)} faults in {files} files" if files else "whole"
    read = f"{len(manifest.shards):,} shards, all read{again}"
    terminal.print_line(console, f"{parsed.path}: {verdict} ({manifest.content.dataset}, {read})")
    return 1 if faults else 0


def _prepare_again(parsed: argparse.Namespace, manifest: "Manifest") -> "Job":
    """The job that a manifest tells of, prepared of the source images that are here.

    Raises DataError where it would make other examples.
    """
    from capsweep.config.overrides import render

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
        raise DataError(
            f"{content.dataset}: the source that is read here makes other examples "
            f"({_describe_difference(job.content, content)}); set --data-dir to the files that the "
            "data set was made of, and use the version of capsweep that made it"
        )
    return job


def _describe_difference(here: "Content", there: "Content") -> str:
    from capsweep.config.cell import flat

    one, other = flat(asdict(here)), flat(asdict(there))
    return "; ".join(
        f"{key}: {other.get(key, 'none')} in index.json, {one.get(key, 'none')} here"
        for key in {**other, **one}
        if one.get(key) != other.get(key)
    )
