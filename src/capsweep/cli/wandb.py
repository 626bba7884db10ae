"""`capsweep wandb ...`: copy what the ledger has to Weights & Biases."""

import argparse
import json
import time
from collections.abc import Iterator

from capsweep import terminal
from capsweep.cli.ledger import find_storage, open_ledger
from capsweep.config import places
from capsweep.errors import UserError
from capsweep.tracking import dashboard, mode, sync
from capsweep.tracking.sync import Sync, SyncResult


def run_dashboard(parsed: argparse.Namespace) -> None:
    """Save a workspace of a sweep, and print its URL."""
    from capsweep.cli import sweep_options  # it imports Hydra, which `sync` does not need

    dashboard.check_installed()
    sweep, points = sweep_options.load_points(parsed)
    config = points[0].cell.config
    logger = config["logger"]
    if logger["name"] != "wandb":
        raise UserError("logger=csv: the cells of this sweep are not tracked; use logger=wandb")
    arms = tuple(dict.fromkeys(point.arm for point in points))
    view = dashboard.SweepView(sweep.name, arms, sweep.metric)
    place = (logger["entity"], logger["project"])
    if parsed.dry_run:
        print(json.dumps(dashboard.describe_workspace(view, *place), indent=2))
        return
    mode.check_reachable(mode.server_url(), f"the workspace of {sweep.name} is not saved")
    print(dashboard.send_workspace(view, *place, parsed.url))


def run_sync(parsed: argparse.Namespace) -> int:
    """Upload what W&B does not have."""
    storage, ledger = places.folder_of(find_storage(parsed)), open_ledger(parsed)
    server, console = mode.server_url(), terminal.make_console(stderr=parsed.json)
    started = time.monotonic()
    cells = [ledger.find_signature(prefix) for prefix in parsed.signature]
    result = sync.find_unsynced(ledger, storage, server, cells or ledger.list_signatures())
    if result.waiting:

        def report_cell(signature: str, fault: str | None) -> None:
            terminal.print_paragraph(console, f"{signature}: {fault or 'uploaded'}")

        Sync(ledger, storage, server, parsed.jobs, parsed.timeout).run(result, report_cell)
    seconds = time.monotonic() - started
    if parsed.json:
        names = {"uploaded": "uploaded", "there": "synced", "running": "live", "failed": "faults"}
        values = {key: getattr(result, name) for key, name in names.items()}
        print(json.dumps({"server": server, **values, "seconds": seconds}))
    for line in _result_lines(server, result, seconds):
        terminal.print_paragraph(console, line)
    return 1 if result.faults else 0


def _result_lines(server: str, result: SyncResult, seconds: float) -> Iterator[str]:
    if not (result.waiting or result.synced or result.live or result.faults):
        yield "no cell of this ledger was tracked with W&B"
        return
    counts = f"{len(result.uploaded)} cells uploaded in {seconds:.1f} s"
    yield f"W&B at {server}: {counts}, {len(result.synced)} were there"
    if result.live:
        yield f"{len(result.live)} cells are running, and send their rows themselves"
    if result.faults:
        yield f"{len(result.faults)} cells not uploaded; run it again: nothing is sent twice"
