"""The uploads of `capsweep wandb`: cells that W&B lacks, and the workspace of a sweep.

Cells are uploaded in parallel. A sync makes one attempt for each cell, with a time limit. A
workspace groups the runs of a sweep by the rows of the sweep's table. The workspace shows the
errors of each row and of each value of an axis, and curves with bands over the seeds.

A workspace must name a key of a run's configuration with the suffix `.value`, as W&B's backend
stores the key. For our key `routing.num_iters`, the workspace has `routing.num_iters.value`.
Without the suffix, wandb-workspaces takes the first dot for a nested key and requests
`routing.value.num_iters`. No run has this key. The axes have bars, because a scatter plot of
wandb-workspaces accepts no key with the suffix, and W&B's scatter plots show only numbers.
"""

import fcntl
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep.errors import DamageError, UserError
from capsweep.ledger.ledger import POINT_LOSS, READERS, Ledger
from capsweep.runtime.terminal import count_of
from capsweep.statistics.metric_format import measure_of
from capsweep.tracking import content
from capsweep.tracking.content import RunContent
from capsweep.tracking.tracker import TrackingError, WandbProcess

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Section, Workspace

START_SECONDS = 30.0  # time limit for the first import of W&B from a slow disk
CHECK_SECONDS = 3.0  # time limit for a check of the login
SEND_SECONDS = 30.0  # time limit for saving a workspace
OF_EPOCHS = ("train/loss", "val/loss", "train/error", "val/error")
CURVES = {POINT_LOSS: "step"} | dict.fromkeys(OF_EPOCHS, "epoch")  # metrics and their x axes
MOST_RUNS = 1000  # limit of runs in a panel; W&B's default of 10 would leave seeds out of a mean


@dataclass
class SyncResult:
    """The cells of a sync, in five groups.

    Attributes:
        waiting: The signatures of the cells that must be uploaded.
        synced: The signatures of the cells that W&B has completely.
        live: The signatures of the cells that are running and send their rows to W&B themselves.
        uploaded: The signatures of the cells that this sync has uploaded.
        faults: Why a cell could not be read or uploaded, by signature.
    """

    waiting: list[str] = field(default_factory=list)
    synced: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    uploaded: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)


def find_unsynced(
    ledger: Ledger, storage: Path, server: str, signatures: Sequence[str]
) -> SyncResult:
    """Find the cells that the W&B server lacks.

    The mark of each cell is compared with the content of the cell in the ledger. The server is not
    asked. Cells that are missing or were not tracked with W&B are left out.

    Args:
        ledger: The ledger that has the cells.
        storage: The folder that has the marks and the columns.
        server: The URL of the server.
        signatures: The signatures of the cells.

    Raises:
        DamageError: If a file of columns is damaged.
    """
    result, columns = SyncResult(), content.read_columns(storage)

    def read_cell(signature: str) -> RunContent | None:
        try:
            return content.read_content(ledger, signature, columns.get(signature, {}))
        except DamageError as error:
            result.faults[signature] = str(error)
            return None

    with ThreadPoolExecutor(READERS if ledger.disk is None else 1) as pool:
        cells = list(pool.map(read_cell, signatures))
    for cell in cells:
        if cell is None or cell.run["project"] is None or cell.status == "missing":
            continue
        if cell.status == "running" and cell.mode == "online":
            result.live.append(cell.signature)
        elif content.is_synced(storage, cell, server):
            result.synced.append(cell.signature)
        else:
            result.waiting.append(cell.signature)
    return result


class Sync:
    """An upload of a ledger's cells to the configured W&B server, by several processes.

    Args:
        ledger: The ledger that has the cells.
        storage: The folder that has the marks.
        server: The URL of the server, for marks and messages.
        jobs: The number of processes that upload.
        seconds: The time limit for one cell.
    """

    def __init__(
        self, ledger: Ledger, storage: Path, server: str, jobs: int, seconds: float
    ) -> None:
        self.storage, self.server, self.jobs, self.seconds = storage, server, jobs, seconds
        self._place = {"ledger": str(ledger.store.root), "storage": str(storage), "server": server}
        self._children: list[WandbProcess] = []  # all processes that were started
        self._idle: list[WandbProcess] = []
        self._stop: str | None = None

    def run(self, result: SyncResult) -> Generator[tuple[str, str | None], None, None]:
        """Upload the waiting cells, and add each to `uploaded` or `faults` of the result.

        Args:
            result: The result of `find_unsynced`; this object is changed.

        Yields:
            For each cell, in order, the signature and the reason of the failure; the reason is None
            after a success.

        Raises:
            UserError: If there is no valid login, if the server does not answer, or if another sync
                of this storage is running. Nothing has been uploaded then.
        """
        lock = self.storage / "wandb" / "sync.lock"  # two syncs would both send the same cells
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("ab") as file, ThreadPoolExecutor(self.jobs) as pool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (fault := self._check_server()) is not None:
                    count = count_of(len(result.waiting), "cell")
                    raise UserError(f"W&B: {count} not uploaded: {fault}")
                faults = pool.map(self._upload_cell, result.waiting)
                for signature, fault in zip(result.waiting, faults, strict=True):
                    if fault is None:
                        result.uploaded.append(signature)
                    else:
                        result.faults[signature] = fault
                    yield signature, fault
            except BlockingIOError as error:
                raise UserError(f"{lock}: another sync is running; wait until it ends") from error
            finally:  # also after Ctrl-C; the next sync repeats unfinished uploads
                self._stop = "interrupted"
                for child in self._children:
                    child.kill()

    def _upload_cell(self, signature: str) -> str | None:
        """Upload a cell, and return the reason of a failure; None after a success."""
        if self._stop is not None:
            return f"not tried: {self._stop}"
        fault = self._ask_child("upload", self.seconds, signature=signature, **self._place)
        if fault is not None and self._stop is None:
            self._stop = self._check_server()
        return fault

    def _check_server(self) -> str | None:
        """Check login and server; return the problem and its cure, or None if both are usable."""
        fault = self._ask_child("check", CHECK_SECONDS)
        cure = "run `wandb login --relogin` if the login is at fault, else try again later"
        return None if fault is None else f"{self.server} cannot be used ({fault}); {cure}"

    def _ask_child(self, do: str, seconds: float, **values: Any) -> str | None:
        """Send a request to an idle or new process; return the reason of a failure, or None.

        If the request fails or takes too long, the process is killed.
        """
        if self._idle:
            child = self._idle.pop()
        else:
            child = WandbProcess()
            self._children.append(child)
            if self._stop == "interrupted":  # interrupted while the process was started
                child.kill()
        try:
            child.ask("start", START_SECONDS)
            child.ask(do, seconds, **values)
        except (TrackingError, OSError) as error:
            child.kill()
            return str(error)
        self._idle.append(child)
        return None


@dataclass(frozen=True)
class SweepView:
    """The content of a workspace: the runs of a sweep's cells."""

    sweep: str  # name of the sweep
    title: str  # name of the sweep with the words of the command, such as `ablation-EPOCHS=1`
    cells: Sequence[str]  # signatures of the cells
    keys: Sequence[str]  # keys of the table that have several values
    axes: Sequence[str]  # axes that have several values
    metric: str = "test/error"  # metric of the table


def build_workspace(view: SweepView, entity: str, project: str) -> "Workspace":
    """Build the workspace for a view; nothing is sent."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    settings = [f"config:{key}.value" for key in (*view.keys, "seed")]
    is_ascending = not measure_of(view.metric).higher_is_better
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"capsweep {view.title}".replace("=", " "),  # W&B refuses the sign = in a name
        sections=_make_sections(view),
        settings=ws.WorkspaceSettings(x_axis="epoch", max_runs=MOST_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(ws.Metric("ID").isin(list(view.cells))),
            groupby=[ws.Config(f"{content.name_row(view.sweep)}.value")],
            order=[ws.Ordering(ws.Summary(view.metric), is_ascending)],
            pinned_columns=["run:displayName", f"summary:{view.metric}", *settings],
        ),
    )


def _make_sections(view: SweepView) -> "list[Section]":
    """Make two sections: the metric by row and by each axis, and curves of each row."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    mean = {"groupby_aggfunc": "mean", "max_runs_to_show": MOST_RUNS}
    groups = {"row": content.name_row(view.sweep)} | {
        key: content.name_axis(key) for key in view.axes
    }
    bars = [
        wr.BarPlot(
            title=f"{view.metric} by {title} (mean, standard deviation)",
            metrics=[view.metric],
            groupby=wr.Config(f"{column}.value"),
            groupby_rangefunc="stddev",
            max_bars_to_show=MOST_RUNS,
            **mean,
        )
        for title, column in groups.items()
    ]
    title = "mean, least and greatest of the seeds"
    curves = [
        wr.LinePlot(title=f"{key} ({title})", x=axis, y=[key], groupby_rangefunc="minmax", **mean)
        for key, axis in CURVES.items()
    ]
    panels = {"Answers": bars, "Curves": curves}
    return [ws.Section(name=name, panels=made, is_open=True) for name, made in panels.items()]


def send_workspace(view: SweepView, entity: str | None, project: str) -> str:
    """Save a new workspace at the server, and return the URL of the workspace.

    Another process saves the workspace. If this takes longer than SEND_SECONDS, the process is
    killed.

    Args:
        view: The content of the workspace.
        entity: The user or team at W&B; None: the default of the login.
        project: The project at W&B.

    Raises:
        UserError: If the workspace is not saved. The message contains W&B's reason.
    """
    place = {"entity": entity, "project": project}
    child = WandbProcess()
    try:
        return child.ask("save", SEND_SECONDS, view=asdict(view), **place)["url"]
    except (TrackingError, OSError) as error:
        cure = "install capsweep[wandb] if it is missing, or try again later"
        raise UserError(f"W&B: the workspace is not saved: {error}; {cure}") from error
    finally:
        child.kill()
