"""A sweep's saved workspace in W&B: its runs grouped, its curves with bands, its errors by arm.

Keys are written as W&B's backend has them. Ours are flat with dots in them (`routing.num_iters` is
one key), and W&B keeps a value under `KEY.value`; wandb-workspaces would take the first dot for a
nesting and ask for `routing.value.num_iters`, which no run has, unless `.value` is given.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from capsweep.errors import UserError
from capsweep.ledger.ledger import POINT_LOSS
from capsweep.tracking.tracker import Child, TrackingError

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Section, Workspace

OF_EPOCHS = ("train/loss", "val/loss", "train/error", "val/error")
CURVES = {POINT_LOSS: "step"} | dict.fromkeys(OF_EPOCHS, "epoch")  # by their axes
SEND_SECONDS = 30.0
MOST_RUNS = 1000  # in a panel; W&B's own 10 would leave seeds out of a mean


@dataclass(frozen=True)
class SweepView:
    """What the workspace shows: the runs of a sweep's cells.

    title: of the sweep as chosen. cells: signatures, if all are known and a panel has room for
    them; else runs are found by the arms and `tags` of the sweep, without tags where cells wait for
    the baseline, for other choices may have run it. axes: keys of several values.
    """

    sweep: str
    title: str
    arms: Sequence[str]
    tags: Sequence[str]
    cells: Sequence[str]
    axes: Sequence[str]
    metric: str = "test/error"


def check_installed() -> None:
    """Raises UserError where wandb-workspaces is not installed."""
    if importlib.util.find_spec("wandb_workspaces") is None:
        cure = "pip install 'capsweep[wandb]', or wandb-workspaces itself"
        raise UserError(f"the dashboard needs wandb-workspaces, which is not installed; {cure}")


def build_workspace(view: SweepView, entity: str, project: str) -> "Workspace":
    """The workspace, as an object that is not sent."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    chosen = [ws.Metric("ID").isin(list(view.cells))]
    if not view.cells:
        arms = ws.Metric("JobType").isin(list(view.arms))
        tags = (ws.Metric("Tags").isin([tag]) for tag in view.tags)
        chosen = [ws.Metric("Group") == view.sweep, arms, *tags]
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"capsweep {view.title}".replace("=", " "),  # W&B takes no signs of mathematics
        sections=_make_sections(view),
        settings=ws.WorkspaceSettings(x_axis="epoch", max_runs=MOST_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(*chosen),
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


def describe_workspace(view: SweepView, entity: str | None, project: str) -> dict[str, Any]:
    """The specification as plain values, for people and programs, before anything is sent."""
    from pydantic import TypeAdapter
    from wandb_workspaces.workspaces import Workspace

    built = build_workspace(view, entity or "", project)
    return json.loads(TypeAdapter(Workspace).dump_json(built, exclude_none=True, warnings="error"))


def send_workspace(
    view: SweepView,
    entity: str | None,
    project: str,
    url: str | None = None,
    seconds: float = SEND_SECONDS,
) -> str:
    """Save the workspace, in a process that can be ended, within the time; its URL.

    url: of the workspace that it takes the place of. Raises UserError with W&B's reason.
    """
    place = {"entity": entity, "project": project, "url": url}
    child = Child("workspace")
    try:
        return child.ask("save", seconds, view=asdict(view), **place)["url"]
    except (TrackingError, OSError) as error:
        raise UserError(f"W&B: the workspace is not saved: {error}; run it again later") from error
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
