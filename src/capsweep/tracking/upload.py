"""What `capsweep wandb` sends: the cells that W&B lacks, in parallel, each once, in bounded time;
and a sweep's saved workspace: its runs grouped, its curves with bands, its errors by arm.

Keys of a workspace are written as W&B's backend has them. Ours are flat with dots in them
(`routing.num_iters` is one key), and W&B keeps a value under `KEY.value`; wandb-workspaces would
take the first dot for a nesting and ask for `routing.value.num_iters`, which no run has, unless
`.value` is given.
"""

import fcntl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep.errors import DamageError, UserError
from capsweep.ledger.ledger import POINT_LOSS, READERS, Ledger
from capsweep.runtime.terminal import count_of
from capsweep.tracking.content import RunContent, is_synced, read_content
from capsweep.tracking.tracker import Child, TrackingError

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Section, Workspace

# What carries out requests, in a process of its own.
OF_CELLS = "capsweep.tracking.wandb_run:handle_upload"
OF_WORKSPACES = "capsweep.tracking.upload:handle_workspace"
START_SECONDS = 30.0  # the first import of W&B from a cold disk
CHECK_SECONDS = 3.0
SEND_SECONDS = 30.0  # of a workspace
OF_EPOCHS = ("train/loss", "val/loss", "train/error", "val/error")
CURVES = {POINT_LOSS: "step"} | dict.fromkeys(OF_EPOCHS, "epoch")  # by their axes
MOST_RUNS = 1000  # in a panel; W&B's own 10 would leave seeds out of a mean

Report = Callable[[str, str | None], object]


@dataclass
class SyncResult:
    """Signatures of cells by what W&B has of them.

    waiting: cells to upload. live: running cells that send their rows themselves. faults: why
    cells are not uploaded, by signature.
    """

    waiting: list[RunContent] = field(default_factory=list)
    synced: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    uploaded: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)


def find_unsynced(
    ledger: Ledger, storage: Path, server: str, signatures: Sequence[str]
) -> SyncResult:
    """What the server lacks of these cells, by their marks alone, without asking the server.

    Cells that were not tracked with W&B do not count.
    """
    result = SyncResult()

    def read_cell(signature: str) -> RunContent | None:
        try:
            return read_content(ledger, signature)
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
        elif is_synced(storage, cell, server):
            result.synced.append(cell.signature)
        else:
            result.waiting.append(cell)
    return result


class Sync:
    """Uploads cells of a ledger to the server that W&B is configured for.

    jobs: processes that upload. seconds: at most, for one cell.
    """

    def __init__(
        self, ledger: Ledger, storage: Path, server: str, jobs: int = 4, seconds: float = 120.0
    ) -> None:
        self.storage, self.server, self.jobs, self.seconds = storage, server, jobs, seconds
        self._place = {"ledger": str(ledger.store.root), "storage": str(storage), "server": server}
        self._children: list[Child] = []  # all that were started
        self._idle: list[Child] = []
        self._stop: str | None = None

    def run(self, result: SyncResult, report: Report) -> None:
        """Upload the cells that wait; `report` is called with each and its fault, in their order.

        Raises UserError, before any cell, when nobody is logged in, the server refuses or does not
        answer, or another sync of this storage is at work.
        """
        signatures = [cell.signature for cell in result.waiting]
        lock = self.storage / "wandb" / "sync.lock"  # two at once would both send the same cells
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("ab") as file, ThreadPoolExecutor(self.jobs) as pool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (fault := self._check_server()) is not None:
                    count = count_of(len(signatures), "cell")
                    raise UserError(f"W&B: {count} not uploaded, but {fault}")
                faults = pool.map(self._upload_cell, signatures)
                for signature, fault in zip(signatures, faults, strict=True):
                    if fault is None:
                        result.uploaded.append(signature)
                    else:
                        result.faults[signature] = fault
                    report(signature, fault)
            except BlockingIOError as error:
                raise UserError(f"{lock}: another sync is at work; wait for it") from error
            finally:  # also at Ctrl-C: unfinished uploads are repeated by the next sync
                self._stop = "interrupted"
                for child in self._children:
                    child.kill()

    def _upload_cell(self, signature: str) -> str | None:
        """Why the cell could not be uploaded; None when it was."""
        if self._stop is not None:
            return f"not tried: {self._stop}"
        fault = self._ask_child("upload", self.seconds, signature=signature, **self._place)
        if fault is not None and self._stop is None:
            self._stop = self._check_server()
        return fault

    def _check_server(self) -> str | None:
        """Why no cell can be uploaded now, and the cure."""
        fault = self._ask_child("check", CHECK_SECONDS)
        cure = "run `wandb login --relogin` if the login is at fault, else try again later"
        return None if fault is None else f"{self.server} refuses or is silent ({fault}); {cure}"

    def _ask_child(self, do: str, seconds: float, **values: Any) -> str | None:
        """Why a request could not be carried out within the time, and then its process is ended;
        None when it was."""
        if self._idle:
            child = self._idle.pop()
        else:
            child = Child(OF_CELLS)
            self._children.append(child)
            if self._stop == "interrupted":  # as it was started
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
    """What the workspace shows: the runs of a sweep's cells.

    title: of the sweep as chosen. cells: their signatures. axes: keys of several values.
    """

    title: str
    cells: Sequence[str]
    axes: Sequence[str]
    metric: str = "test/error"


def build_workspace(view: SweepView, entity: str, project: str) -> "Workspace":
    """The workspace, as an object that is not sent."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"capsweep {view.title}".replace("=", " "),  # W&B takes no signs of mathematics
        sections=_make_sections(view),
        settings=ws.WorkspaceSettings(x_axis="epoch", max_runs=MOST_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(ws.Metric("ID").isin(list(view.cells))),
            groupby=[ws.Metric("JobType"), *(ws.Config(f"{key}.value") for key in view.axes)],
        ),
    )


def _make_sections(view: SweepView) -> "list[Section]":
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    mean = {"groupby_aggfunc": "mean", "max_runs_to_show": MOST_RUNS}
    title = "mean, least and greatest of the seeds"
    curves = [
        wr.LinePlot(title=f"{key} ({title})", x=axis, y=[key], groupby_rangefunc="minmax", **mean)
        for key, axis in CURVES.items()
    ]
    bars = wr.BarPlot(
        title=f"{view.metric} by arm (mean, standard deviation)",
        metrics=[view.metric],
        groupby=wr.Metric("JobType"),
        groupby_rangefunc="stddev",
        **mean,
    )
    panels = {"Curves": curves, "Answers": [bars]}
    return [ws.Section(name=name, panels=made, is_open=True) for name, made in panels.items()]


def send_workspace(view: SweepView, entity: str | None, project: str, url: str | None) -> str:
    """Save the workspace, in a process that can be ended, within the time; its URL.

    url: of the workspace that it takes the place of; None: it is new. Raises UserError with W&B's
    reason.
    """
    place = {"entity": entity, "project": project, "url": url}
    child = Child(OF_WORKSPACES)
    try:
        return child.ask("save", SEND_SECONDS, view=asdict(view), **place)["url"]
    except (TrackingError, OSError) as error:
        cure = "with capsweep[wandb] installed, run it again later"
        raise UserError(f"W&B: the workspace is not saved: {error}; {cure}") from error
    finally:
        child.kill()


def handle_workspace(request: Mapping[str, Any]) -> dict[str, str]:
    """Save a workspace at the server, new or in place of another one."""
    import wandb
    from wandb_workspaces.workspaces import Workspace

    entity = request["entity"] or wandb.Api().default_entity or ""
    workspace = build_workspace(SweepView(**request["view"]), entity, request["project"])
    if request["url"] is not None:
        saved = Workspace.from_url(request["url"])
        for name in ("name", "sections", "settings", "runset_settings"):
            setattr(saved, name, getattr(workspace, name))
        workspace = saved
    workspace.save()
    return {"url": workspace.url}
