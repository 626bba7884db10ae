"""`capsweep wandb ...`: copy what the ledger has to Weights & Biases."""

import argparse
import json
import math
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.cli.command import Commands, add_command, add_group, add_json, add_places
from capsweep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from capsweep.ledger.ledger import Ledger
    from capsweep.tracking.sync import Sync, SyncResult


def add_parser(commands: Commands) -> None:
    """Add `wandb` and its commands to the parser."""
    group = add_group(commands, "wandb", "copy what the ledger has to Weights & Biases")
    text = "upload what W&B does not have of the cells that were tracked with it"
    sync = add_command(group, "sync", _run_sync, text)
    sync.add_argument("signature", nargs="*", help="only these cells: signatures, or first letters")
    add_places(sync)
    sync.add_argument("--jobs", type=int, default=4, help="so many cells at once (default 4)")
    text = "seconds after which a cell is given up (120)"
    sync.add_argument("--timeout", type=float, default=120.0, help=text)
    add_json(sync)
    text = "save a workspace of a sweep in W&B: curves with bands, errors by arm, pictures"
    board = add_command(group, "dashboard", _save_dashboard, text)
    sweep_options.add_options(board)
    board.add_argument("--url", help="of the workspace to renew; default: a new one is made")
    board.add_argument("--dry-run", action="store_true", help="print what would be sent, as JSON")


def _save_dashboard(parsed: argparse.Namespace) -> int:
    from capsweep.config.places import resolve
    from capsweep.ledger.ledger import Ledger
    from capsweep.tracking import content, dashboard, mode

    dashboard.check_installed()
    sweep, points = sweep_options.load_points(parsed)
    config = points[0].cell.config
    logger = config["logger"]
    if logger["name"] != "wandb":
        raise UserError("logger=csv: the cells of this sweep are not tracked; use logger=wandb")
    ledger = Ledger(resolve(config["places"]).ledger)
    names = {name for point in points for name in ledger.list_evaluations(point.cell.signature)}
    pictures = [content.picture_key(n) for n in sorted(names) if n.endswith(content.PICTURES)]
    arms = tuple(dict.fromkeys(point.arm for point in points))
    view = dashboard.SweepView(sweep.name, arms, sweep.metric, pictures)
    place = (logger["entity"], logger["project"])
    if parsed.dry_run:
        print(json.dumps(dashboard.describe_workspace(view, *place), indent=2))
        return 0
    mode.check_reachable(mode.server_url(), f"the workspace of {sweep.name} is not saved")
    print(dashboard.send_workspace(view, *place, parsed.url))
    return 0


def _run_sync(parsed: argparse.Namespace) -> int:
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.tracking import mode, sync

    if parsed.jobs < 1 or not 0 < parsed.timeout < math.inf:  # not: nan is neither
        raise UserError("--jobs and --timeout must be greater than 0")
    given = parsed.storage or os.environ.get("STORAGE", "outputs")
    storage, ledger = places.folder_of(given), Ledger(places.ledger_of(given, parsed.ledger))
    server, console = mode.server_url(), terminal.make_console(stderr=parsed.json)
    started = time.monotonic()
    result = sync.find_unsynced(ledger, storage, server, _find_signatures(ledger, parsed.signature))
    if result.waiting:
        work = sync.Sync(ledger, storage, server, parsed.jobs, parsed.timeout)
        _run_with_progress(work, result, console)
    seconds = time.monotonic() - started
    if parsed.json:
        names = {"uploaded": "uploaded", "there": "synced", "running": "live", "failed": "faults"}
        values = {key: getattr(result, name) for key, name in names.items()}
        print(json.dumps({"server": server, **values, "seconds": seconds}))
    for line in _result_lines(server, result, seconds):
        terminal.print_paragraph(console, line)
    return 1 if result.faults else 0


def _find_signatures(ledger: "Ledger", prefixes: list[str]) -> list[str]:
    if not prefixes:
        return ledger.list_signatures()
    return [ledger.find_signature(prefix) for prefix in prefixes]


def _run_with_progress(work: "Sync", result: "SyncResult", console: "Console") -> None:
    from rich.progress import track

    names = {cell.signature: cell.run["name"] for cell in result.waiting}
    bar = iter(
        track(names, "uploading", console=console, transient=True, disable=not console.is_terminal)
    )

    def report_cell(signature: str, fault: str | None) -> None:
        if fault is not None:
            terminal.print_paragraph(console, f"{signature} ({names[signature]}): {fault}")
        next(bar, None)

    work.run(result, report_cell)


def _result_lines(server: str, result: "SyncResult", seconds: float) -> "Iterator[str]":
    if not (result.waiting or result.synced or result.live or result.faults):
        yield "no cell of this ledger was tracked with W&B"
        return
    counts = f"{len(result.uploaded)} cells uploaded in {seconds:.1f} s"
    yield f"W&B at {server}: {counts}, {len(result.synced)} were there"
    if result.live:
        yield f"{len(result.live)} cells are running, and send their rows themselves"
    for cause, count in Counter(result.faults.values()).most_common():
        yield f"{count} cells not uploaded: {cause}"
    if result.faults:
        yield "nothing is lost: run it again, and what is there is not sent twice"
