"""The workspace of a sweep: built offline, and saved at a local server that knows W&B's query."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wandb_server import KEY, WandbServer

from capsweep.config.cell import Cell, flat
from capsweep.errors import UserError
from capsweep.tracking import dashboard
from capsweep.tracking.dashboard import SweepView

# wandb-workspaces 0.4.13 has validators in a style that pydantic is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")

VIEW = SweepView("ablation", ("cnn", "capsnet"), pictures=("pictures/reconstructions",))


@pytest.fixture
def built() -> dict[str, Any]:
    """The specification as it would be sent; there is no public way to it before it is."""
    model = dashboard.build_workspace(VIEW, "team", "capsules")._to_model()
    return json.loads(model.model_dump_json(by_alias=True, exclude_none=True))


def panels(built: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    sections = built["spec"]["section"]["panelBankConfig"]["sections"]
    return [p["config"] for s in sections for p in s["panels"] if p["viewType"] == kind]


def test_runs_of_the_sweep_are_grouped_by_iterations_and_reconstruction(
    built: dict[str, Any],
) -> None:
    assert (built["entity"], built["project"]) == ("team", "capsules")
    (runs,) = built["spec"]["section"]["runSets"]
    filters = [(f["key"]["name"], f["op"], f["value"]) for f in runs["filters"]["filters"]]
    assert filters == [("group", "=", "ablation"), ("jobType", "IN", ["cnn", "capsnet"])]
    assert runs["grouping"] == [
        {"section": "config", "name": "routing.num_iters.value"},
        {"section": "config", "name": "loss.reconstruction.weight.value"},
    ]


def test_keys_that_runs_are_grouped_by_are_keys_of_their_flat_configuration(
    small_cell: Callable[..., Cell],
) -> None:
    science = flat(small_cell().science)
    assert {dashboard.ITERATIONS, dashboard.RECONSTRUCTION} <= set(science)


def test_curves_are_means_with_bands_by_epoch(built: dict[str, Any]) -> None:
    curves = panels(built, "Run History Line Plot")
    assert [curve["metrics"] for curve in curves] == [[key] for key in dashboard.CURVES]
    assert {(c["xAxis"], c["groupAgg"], c["groupArea"]) for c in curves} == {
        ("epoch", "mean", "minmax")
    }
    assert {curve["limit"] for curve in curves} == {1000}


def test_errors_stand_by_arm_and_against_their_cost(built: dict[str, Any]) -> None:
    (bars,) = panels(built, "Bar Chart")
    assert (bars["metrics"], bars["groupBy"], bars["groupAgg"]) == (
        ["test/error"],
        "jobType",
        "mean",
    )
    costs = [(chart["xAxis"], chart["yAxis"]) for chart in panels(built, "Scatter Plot")]
    assert costs == [
        ("summary:gpu_hours", "summary:test/error"),
        ("summary:params", "summary:test/error"),
    ]


def test_pictures_are_shown_where_there_are_some(built: dict[str, Any]) -> None:
    (media,) = panels(built, "Media Browser")
    assert media["mediaKeys"] == ["pictures/reconstructions"]
    bare = dashboard.describe_workspace(SweepView("ablation", ("cnn",)), None, "capsules")
    assert [section["name"] for section in bare["sections"]] == ["Curves", "Answers"]


def test_a_workspace_that_is_saved_twice_is_one(server: WandbServer, tmp_path: Path) -> None:
    file = tmp_path / "ablation.json"
    url = dashboard.send_workspace(VIEW, None, "capsules", file)
    assert url.startswith(f"{server.url}/tester/capsules?nw=")
    more = SweepView("ablation", ("cnn", "capsnet", "control"))
    assert dashboard.send_workspace(more, None, "capsules", file) == url
    (view,) = server.cloud.views.values()
    assert (view["entityName"], view["displayName"]) == ("tester", "capsweep ablation")
    assert "control" in view["spec"]
    assert server.cloud.unknown == server.faults == []
    server.cloud.views.clear()  # somebody removed it
    assert dashboard.send_workspace(VIEW, None, "capsules", file) != url
    assert KEY not in file.read_text()


def test_a_server_that_hangs_does_not_hang_us(server: WandbServer, tmp_path: Path) -> None:
    server.mode = "hang"
    began = time.monotonic()
    with pytest.raises(UserError, match="the workspace is not saved"):
        dashboard.send_workspace(VIEW, None, "capsules", tmp_path / "a.json", seconds=2)
    assert time.monotonic() - began < 10
    assert not (tmp_path / "a.json").exists()


def test_a_refusal_is_told(server: WandbServer, tmp_path: Path) -> None:
    server.mode = "refuse"
    with pytest.raises(UserError, match="Failed to verify credentials"):
        dashboard.send_workspace(VIEW, None, "capsules", tmp_path / "a.json")
