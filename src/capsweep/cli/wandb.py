"""`capsweep wandb ...`: copy cells of the ledger to Weights & Biases."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from capsweep.cli.ledger import find_storage, open_ledger, select_cells
from capsweep.config import places
from capsweep.config.cell import get
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.runtime import terminal
from capsweep.runtime.terminal import count_of
from capsweep.tracking import content, mode, upload
from capsweep.tracking.content import Labels
from capsweep.tracking.upload import SweepView, Sync, SyncResult

if TYPE_CHECKING:
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep


def run_dashboard(parsed: argparse.Namespace) -> None:
    """Save a workspace for a sweep in W&B, and print its URL."""
    # These modules import Hydra, which `sync` does not need.
    from capsweep.sweep import choices, expand

    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides)
    points = expand.set_accuracies(sweep, expand.expand_sweep(sweep))
    config = points[0].cell.config
    logger = config["logger"]
    if logger["name"] != "wandb":
        why = f"logger={logger['name']}: the cells of this sweep are not in W&B"
        raise UserError(f"{why}; type logger=wandb")
    node = places.resolve(config["places"])
    labels = expand.make_labels(sweep, [point for point in points if not point.waits])
    content.write_columns(node.storage, labels)
    view = _make_view(sweep, points, labels)
    print(upload.send_workspace(view, logger["entity"], logger["project"]))
    server = mode.read_server_url()
    unsynced = upload.find_unsynced(Ledger(node.ledger), node.storage, server, view.cells).waiting
    if unsynced:
        lacking = f"{server} lacks {count_of(len(unsynced), 'cell')}, or columns of them"
        terminal.print_aside(f"{lacking}; type make wandb-sync")


def _make_view(
    sweep: "Sweep", points: "Sequence[Point]", labels: Mapping[str, Labels]
) -> SweepView:
    """Return the content of a workspace: cells, and the keys in which the cells differ."""
    if waiting := sum(point.waits for point in points):
        cells = count_of(waiting, "cell")
        terminal.print_aside(f"{cells} wait for the baseline; repeat this command after it")
    keys = [key for key in (*sweep.rows, *sweep.columns) if key != "arm"]
    differing = [k for k in keys if len({p.coordinate(k) for p in points} - {None}) > 1]
    groups = {
        k for k in differing if any(isinstance(get(p.cell.config, k), Mapping) for p in points)
    }
    columns = {column for each in labels.values() for column in each.columns}
    return SweepView(
        sweep=sweep.name,
        title=sweep.report_name,
        cells=list(labels),
        keys=[f"{key}.name" if key in groups else key for key in differing],
        axes=[key for key in differing if content.name_axis(key) in columns],
        metric=sweep.metric,
    )


def run_sync(parsed: argparse.Namespace) -> int:
    """Upload the cells that W&B does not have; return 1 if an upload failed, else 0."""
    storage, ledger = places.locate_folder(find_storage(parsed)), open_ledger(parsed)
    server, console = mode.read_server_url(), terminal.make_console(stderr=parsed.json)
    cells = select_cells(ledger, parsed.signature)
    result = upload.find_unsynced(ledger, storage, server, cells)
    if result.waiting:
        sync = Sync(ledger, storage, server, parsed.jobs, parsed.timeout)
        with closing(sync.run(result)) as uploads:  # after Ctrl-C, its processes end at once
            for signature, fault in uploads:
                terminal.print_paragraphs(console, f"{signature}: {fault or 'uploaded'}")
    if parsed.json:
        names = {"uploaded": "uploaded", "there": "synced", "running": "live", "failed": "faults"}
        values = {key: getattr(result, name) for key, name in names.items()}
        print(json.dumps({"server": server, **values}))
    terminal.print_paragraphs(console, *_result_lines(server, result))
    return 1 if result.faults else 0


def _result_lines(server: str, result: SyncResult) -> Iterator[str]:
    """Yield lines that say how many cells were uploaded, and how many were not."""
    if not (result.waiting or result.synced or result.live or result.faults):
        yield "no cell of this ledger was tracked with W&B"
        return
    uploaded = count_of(len(result.uploaded), "cell")
    yield f"W&B at {server}: {uploaded} uploaded, {len(result.synced)} were there already"
    if result.live:
        yield f"{count_of(len(result.live), 'cell')} still running; they send their rows themselves"
    if result.faults:
        failed = count_of(len(result.faults), "cell")
        yield f"{failed} not uploaded; type the same command again to continue"
