"""`capsweep wandb ...`: copy what the ledger has to Weights & Biases."""

import argparse
import json
import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.cli.command import Commands, add_command, add_group, add_json, add_places
from capsweep.errors import DamageError, UserError
from capsweep.storage.files import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    board.add_argument("--dry-run", action="store_true", help="print what would be sent, as JSON")


def _save_dashboard(parsed: argparse.Namespace) -> int:
    from capsweep.tracking import dashboard, mode

    dashboard.check_installed()
    sweep, points = sweep_options.load_points(parsed)
    config = points[0].cell.config
    logger = config["logger"]
    if logger["name"] != "wandb":
        raise UserError("logger=csv: the cells of this sweep are not tracked; use logger=wandb")
    storage, pictures = _picture_keys(config["places"], [point.cell.signature for point in points])
    arms = tuple(dict.fromkeys(point.arm for point in points))
    view = dashboard.SweepView(sweep.name, arms, sweep.metric, pictures)
    place = (logger["entity"], logger["project"])
    if parsed.dry_run:
        print(json.dumps(dashboard.describe_workspace(view, *place), indent=2))
        return 0
    server = mode.server_url()
    mode.check_reachable(server, f"the workspace of {sweep.name} is not saved")
    where = hash_bytes(f"{server} {logger['entity']} {logger['project']}".encode())[:8]
    file = storage / "wandb" / "dashboards" / where / f"{sweep.name}.json"
    print(dashboard.send_workspace(view, *place, file))
    return 0


def _picture_keys(
    places: "Mapping[str, str]", signatures: list[str]
) -> tuple[Path, tuple[str, ...]]:
    """The storage, and W&B's keys of the pictures that finished cells have."""
    from capsweep.config.places import resolve
    from capsweep.ledger import stored_files
    from capsweep.ledger.ledger import Ledger
    from capsweep.tracking.content import picture_key, read_content

    node_places = resolve(places)
    ledger = Ledger(node_places.ledger)
    keys: set[str] = set()
    for signature in signatures:
        try:
            if ledger.read_result(signature) is not None:
                keys.update(map(picture_key, read_content(ledger, signature).pictures))
        except DamageError as error:
            stored_files.print_damage(error)
    return node_places.storage, tuple(sorted(keys))


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
    signatures = [ledger.find_signature(prefix) for prefix in prefixes]
    for signature in signatures:
        logger = ledger.read_provenance(signature).get("logistics", {}).get("logger", {})
        if logger.get("name") == "csv":
            cure = "run it with logger=wandb, which need not be online"
            raise UserError(f"{signature}: it was not tracked with W&B; {cure}")
    return signatures


def _run_with_progress(work: "Sync", result: "SyncResult", console: "Console") -> None:
    from rich.progress import track

    names = {cell.signature: cell.labels.name or cell.signature for cell in result.waiting}
    bar = iter(
        track(names, "uploading", console=console, transient=True, disable=not console.is_terminal)
    )

    def report_cell(signature: str, fault: str | None) -> None:
        if fault is not None:
            terminal.print_paragraph(console, f"{signature} ({names[signature]}): {fault}")
        next(bar, None)

    work.run(result, report_cell)


def _result_lines(server: str, result: "SyncResult", seconds: float) -> "Iterator[str]":
    if not (result.waiting or result.synced or result.live):
        yield "no cell of this ledger was tracked with W&B"
    else:
        yield (
            f"W&B at {server}: {len(result.uploaded)} cells uploaded in {seconds:.1f} s, "
            f"{len(result.synced)} were there"
        )
    if result.live:
        yield f"{len(result.live)} cells are running, and send their rows themselves"
    for cause, count in Counter(result.faults.values()).most_common():
        yield f"{count} cells not uploaded: {cause}"
    if result.faults:
        yield "nothing is lost: run it again, and what is there is not sent twice"
