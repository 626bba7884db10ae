"""`capsweep wandb dashboard`: built offline, and saved at a local server that knows W&B's query."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wandb_server import WandbServer

from capsweep import cli
from capsweep.config.cell import Cell, flatten
from capsweep.errors import UserError
from capsweep.tracking import content, upload
from capsweep.tracking.upload import SweepView

# wandb-workspaces 0.4.13 has validators in a style that pydantic is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")

AXES = ["routing.num_iters", "loss.reconstruction.weight"]
CELLS = ["8c59b66a180a771f", "96ea0945391ece56"]
VIEW = SweepView("ablation", "ablation-seeds-1", CELLS, AXES, AXES)
ROW = "row.ablation.value"


def build() -> dict[str, Any]:
    """The specification as it would be sent; there is no public way to it before it is."""
    model = upload.build_workspace(VIEW, "team", "capsules")._to_model()
    return json.loads(model.model_dump_json(by_alias=True, exclude_none=True))


def filters(built: dict[str, Any]) -> list[tuple[str, str, Any]]:
    (runs,) = built["spec"]["section"]["runSets"]
    return [(f["key"]["name"], f["op"], f["value"]) for f in runs["filters"]["filters"]]


def panels(built: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    sections = built["spec"]["section"]["panelBankConfig"]["sections"]
    return [p["config"] for s in sections for p in s["panels"] if p["viewType"] == kind]


def test_the_runs_are_grouped_by_row_and_sorted_by_error(small_cell: Callable[..., Cell]) -> None:
    built = build()
    assert (built["entity"], built["project"]) == ("team", "capsules")
    (runs,) = built["spec"]["section"]["runSets"]
    assert filters(built) == [("name", "IN", CELLS)]  # W&B's name is the id
    assert runs["grouping"] == [{"section": "config", "name": ROW}]
    key = {"section": "summary", "name": "test/error"}
    assert runs["sort"]["keys"] == [{"key": key, "ascending": True}]
    settings = [f"config:{key}.value" for key in (*AXES, "seed")]
    pinned = ["run:displayName", "summary:test/error", *settings]
    assert runs["runFeed"]["columnPinned"] == dict.fromkeys(pinned, True)
    assert {*AXES, "seed"} <= set(flatten(small_cell().science))  # as runs have them
    curves = panels(built, "Run History Line Plot")
    assert [curve["metrics"] for curve in curves] == [[key] for key in upload.CURVES]
    axes = {(c["xAxis"], c["groupAgg"], c["groupArea"], c["limit"]) for c in curves}
    assert axes == {(axis, "mean", "minmax", 1000) for axis in ("epoch", "step")}
    bars = panels(built, "Bar Chart")
    assert {bar["metrics"][0] for bar in bars} == {"test/error"}
    assert [bar["groupBy"] for bar in bars] == [ROW, *(f"axis.{key}.value" for key in AXES)]


def test_a_server_that_hangs_is_not_waited_for(
    server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.mode = "hang"
    monkeypatch.setattr(upload, "SEND_SECONDS", 2)
    with pytest.raises(UserError, match=r"the workspace is not saved: .*in time"):
        upload.send_workspace(VIEW, None, "capsules")


def save_dashboard(storage: Path, *more: str) -> int:
    words = ["ablation", "ARMS=cnn,capsnet", "SEEDS=1", f"STORAGE={storage}"]
    return cli.main(["wandb", "dashboard", *words, *more])


def test_the_command_saves_the_sweep_as_chosen_and_prints_where(
    tmp_path: Path, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert save_dashboard(tmp_path) == 0
    ((name, view),) = server.views.items()
    place = f"{server.url}/tester/capsweep?nw={name.removeprefix('nw-').partition('-')[0]}"
    assert capsys.readouterr().out.startswith(place)
    assert (view["entityName"], view["displayName"]) == ("tester", "capsweep ablation-SEEDS 1")
    sent = {"spec": json.loads(view["spec"])}
    assert [len(values) for _, _, values in filters(sent)] == [5]  # five cells
    (runs,) = sent["spec"]["section"]["runSets"]
    assert [key["name"] for key in runs["grouping"]] == [ROW]
    columns = content.read_columns(tmp_path)
    assert columns.keys() == set(filters(sent)[0][2])
    row = "capsnet · routing.num_iters=3 · loss.reconstruction.weight=0.0005"
    axes = {"axis.routing.num_iters": 3, "axis.loss.reconstruction.weight": 0.0005}
    assert [{"row.ablation": "cnn"}, {"row.ablation": row} | axes] == [*columns.values()][::4]


def test_the_command_tells_why_there_is_no_dashboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert save_dashboard(tmp_path) == 2
    assert "Use `wandb login`" in capsys.readouterr().err
    assert save_dashboard(tmp_path, "logger=csv") == 2
    assert "type logger=wandb" in capsys.readouterr().err
