"""`capsweep wandb ...`: copy what the ledger has to Weights & Biases."""

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.cli.command import Commands, add_command, add_group, add_places
from capsweep.errors import DamageError, UserError
from capsweep.storage.files import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from capsweep.ledger.ledger import Ledger
    from capsweep.tracking.sync import Sync, SyncResult, SyncState


def add_parser(commands: Commands) -> None:
    """Add `wandb` and its commands to the parser."""
    text = "copy what the ledger has to Weights & Biases"
    commands = add_group(commands, "wandb", text)
    text = "upload what W&B does not have of the cells that were tracked with it"
    sync = add_command(commands, "sync", _run_sync, text)
    sync.add_argument("signature", nargs="*", help="only these cells: signatures, or first letters")
    add_places(sync)
    sync.add_argument("--jobs", type=int, default=4, help="so many cells at once (default 4)")
    sync.add_argument(
        "--timeout", type=float, default=120.0, help="seconds after which a cell is given up (120)"
    )
    sync.add_argument("--json", action="store_true", help="for programs")
    text = "save a workspace of a sweep in W&B: curves with bands, errors by arm, pictures"
    board = add_command(commands, "dashboard", _save_dashboard, text)
    sweep_options.add_options(board)
    board.add_argument("--dry-run", action="store_true", help="print what would be sent")
    board.add_argument("--json", action="store_true", help="as --dry-run, for programs")


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
    workspace = dashboard.describe_workspace(view, logger["entity"], logger["project"])
    if parsed.json or parsed.dry_run:
        print(json.dumps(workspace, indent=None if parsed.json else 2))
        return 0
    server = mode.server_url()
    if not mode.has_login(server):
        panels = sum(len(section["panels"]) for section in workspace["sections"])
        name, project = workspace["name"], logger["project"]
        what = f"would save the workspace {name!r} ({panels} panels) in {project}"
        raise UserError(f"{what}, but nobody is logged in at {server}; run `wandb login`")
    if mode.is_unreachable(server):
        raise UserError(f"nobody answers at {server}; run it again when somebody does")
    where = hash_bytes(f"{server} {logger['entity']} {logger['project']}".encode())[:8]
    file = storage / "wandb" / "dashboards" / where / f"{sweep.name}.json"
    print(dashboard.send_workspace(view, logger["entity"], logger["project"], file))
    return 0


def _picture_keys(
    places: "Mapping[str, str]", signatures: list[str]
) -> tuple[Path, tuple[str, ...]]:
    """The storage, and W&B's keys of the pictures that cells have."""
    from capsweep.config.places import resolve
    from capsweep.ledger import stored_files
    from capsweep.ledger.ledger import Ledger
    from capsweep.tracking.content import read_content
    from capsweep.tracking.wandb_run import picture_key

    here = resolve(places)
    ledger = Ledger(here.ledger)
    finished = [signature for signature in signatures if ledger.read_result(signature) is not None]
    names = set()
    for signature in finished:
        try:
            names.update(read_content(ledger, signature).pictures)
        except DamageError as error:
            stored_files.print_damage(error)
    return here.storage, tuple(sorted({picture_key(name) for name in names}))


def _run_sync(parsed: argparse.Namespace) -> int:
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.tracking import mode, sync

    if parsed.jobs < 1 or not 0 < parsed.timeout < math.inf:  # not: nan is neither
        raise UserError("--jobs and --timeout must be greater than 0")
    given = parsed.storage or os.environ.get("STORAGE", "outputs")
    storage, ledger = places.folder_of(given), Ledger(places.ledger_of(given, parsed.ledger))
    server, console = mode.server_url(), terminal.console(stderr=parsed.json)
    begun = time.monotonic()
    state = sync.find_unsynced(ledger, storage, server, _find_signatures(ledger, parsed.signature))
    result = sync.SyncResult()
    if state.cells:
        work = sync.Sync(ledger, storage, server, parsed.jobs, parsed.timeout)
        result = _run_with_progress(work, state, console)
    result.faults |= state.damaged
    sync.mark_offline_runs(storage, {*state.synced, *result.uploaded})
    seconds = time.monotonic() - begun
    if parsed.json:
        print(json.dumps(_plain_result(server, state, result, seconds)))
    unknown = [] if parsed.signature else sync.unknown_offline_runs(storage, ledger)
    for line in _result_lines(server, state, result, seconds, unknown):
        terminal.paragraph(console, line)
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


def _run_with_progress(work: "Sync", state: "SyncState", console: "Console") -> "SyncResult":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    names = {cell.signature: cell.labels.name or cell.signature for cell in state.cells}
    columns = (TextColumn("uploading"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=len(names))

        def report_cell(signature: str, fault: str | None) -> None:
            if fault is not None:
                terminal.paragraph(console, f"{signature} ({names[signature]}): {fault}")
            bar.advance(task)

        return work.run(state.cells, report_cell)


def _result_lines(
    server: str, state: "SyncState", result: "SyncResult", seconds: float, unknown: list[Path]
) -> "Iterator[str]":
    if not (state.cells or state.synced or state.live):
        yield "no cell of this ledger was tracked with W&B"
    else:
        yield (
            f"W&B at {server}: {len(result.uploaded)} cells uploaded in {seconds:.1f} s, "
            f"{len(state.synced)} were there"
        )
    if state.live:
        yield f"{len(state.live)} cells are running, and send their rows themselves"
    for cause, count in result.count_causes():
        yield f"{count} cells not uploaded: {cause}"
    if result.faults:
        yield "nothing is lost: run it again, and what is there is not sent twice"
    if unknown:
        first = " ".join(str(folder) for folder in unknown[:3])
        more = " ..." if len(unknown) > 3 else ""
        yield f"{len(unknown)} offline runs are of no cell here: wandb sync {first}{more}"


def _plain_result(
    server: str, state: "SyncState", result: "SyncResult", seconds: float
) -> dict[str, object]:
    return {
        "server": server,
        "uploaded": result.uploaded,
        "there": list(state.synced),
        "running": list(state.live),
        "failed": result.faults,
        "seconds": seconds,
    }
