"""`capsweep bench`: measure, and print every number beside its bar."""

import argparse
import os
from pathlib import Path

from capsweep.cli.command import Commands, add_command

TEXT = "measure, and print every number beside its bar"


def add(doors: Commands) -> None:
    """Add `bench` to the parser."""
    bench = add_command(doors, "bench", _bench, TEXT)
    bench.add_argument("names", nargs="*", help="routing, step, scaling, sweep, ...; default: all")
    bench.add_argument("--json", action="store_true", help="for programs")
    bench.add_argument("--publish", metavar="PAGE", help="renew their sections of this page")
    bench.add_argument("--storage", help="results go to STORAGE/bench; default: outputs")


def _bench(parsed: argparse.Namespace) -> int:
    from capsweep.bench import run
    from capsweep.config.places import folder_of

    storage = folder_of(parsed.storage or os.environ.get("STORAGE", "outputs"))
    page = None if parsed.publish is None else Path(parsed.publish)
    return run.main(parsed.names, storage, parsed.json, page)
