"""The grid: every arm's axes, seeds innermost, each place a cell that can be run."""

import shlex
from pathlib import Path

import pytest

from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand
from capsweep.sweep.choices import Choices
from capsweep.sweep.expand import Point

SMALL = """\
question: Which places are one cell?
base: []
seeds: [4, 2]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small]}
  capsnet: {space: {AXES}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


def grid(name: str, **typed: object) -> list[Point]:
    """The points of a sweep, with what is typed beside its name."""
    return expand.expand_sweep(choices.load_sweep(name, Choices(**typed)))


def small(folder: Path, axes: str) -> list[Point]:
    """The points of a small sweep with these axes."""
    path = folder / "small.yaml"
    path.write_text(SMALL.replace("{AXES}", f"{{{axes}}}"))
    return grid(str(path))


def places(points: list[Point]) -> list[str]:
    """Their titles without repetition, in order."""
    return list(dict.fromkeys(point.title for point in points))


def test_the_main_question_has_fifteen_cells() -> None:
    points = grid("ablation")
    assert len(points) == 15
    assert len({point.cell.signature for point in points}) == 15
    assert places(points) == [
        "cnn",
        "capsnet · routing.num_iters=1 · loss.reconstruction.weight=0",
        "capsnet · routing.num_iters=1 · loss.reconstruction.weight=0.0005",
        "capsnet · routing.num_iters=3 · loss.reconstruction.weight=0",
        "capsnet · routing.num_iters=3 · loss.reconstruction.weight=0.0005",
    ]


def test_the_main_question_with_routing_3_has_nine_of_them() -> None:
    points, whole = grid("ablation", routing="3"), grid("ablation")
    assert len(points) == 9
    assert places(points) == [
        "cnn",
        "capsnet · routing.num_iters=3 · loss.reconstruction.weight=0",
        "capsnet · routing.num_iters=3 · loss.reconstruction.weight=0.0005",
    ]
    wanted = {point.cell.signature for point in points}
    assert wanted < {point.cell.signature for point in whole}
    assert {point.cell.config["routing"]["num_iters"] for point in points[3:]} == {3}


def test_seeds_are_innermost_and_the_same_for_every_place() -> None:
    points = grid("ablation", seeds="7,0,5")
    assert [point.seed for point in points] == [7, 0, 5] * 5
    assert all(point.cell.config["seed"] == point.seed for point in points)
    for start in range(0, 15, 3):
        assert len({point.title for point in points[start : start + 3]}) == 1
    assert points[5].name == f"{points[5].title} · seed 5"


def test_a_place_is_the_cell_its_command_line_runs() -> None:
    for point in grid("ablation", overrides=["epochs=3"]):
        _, _, *overrides = shlex.split(point.cell.command)
        again = compose.cell(overrides)
        assert again.signature == point.cell.signature
        assert again.config["epochs"] == 3
        assert again.config["batch_size"] == 32  # of experiment=digits, in the base


def test_equivalent_places_share_a_signature(tmp_path: Path) -> None:
    axes = "loss.reconstruction.weight: [0, 0.0005], model.decoder.hidden: [[16], [32]]"
    points = [point for point in small(tmp_path, axes) if point.arm == "capsnet"]
    assert len(points) == 8
    by_weight = [points[:4], points[4:]]
    signatures = [{p.cell.signature for p in half} for half in by_weight]
    assert [len(each) for each in signatures] == [2, 4]  # of two seeds; of two seeds and sizes


def test_coordinates_are_arms_groups_and_keys() -> None:
    cnn, capsnet = grid("ablation")[0], grid("ablation")[-1]
    assert [cnn.coordinate(key) for key in ("arm", "dataset", "model")] == [
        "cnn",
        "digits",
        "cnn_small",
    ]
    assert cnn.coordinate("routing.num_iters") is None
    assert cnn.coordinate("routing") is None
    assert capsnet.coordinate("routing") == "dynamic"
    assert capsnet.coordinate("routing.num_iters") == 3
    assert capsnet.coordinate("loss.reconstruction.weight") == 0.0005


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("routing.num_iter: [1]", r"routing\.num_iter: no such key; did you mean routing\.num_it"),
        ("routing.num_iters: [1, 0]", r"routing\.num_iters must be in \[1, 1000\], got 0"),
        ("routing.num_iters: [1, many]", r"routing\.num_iters must be an integer, got 'many'"),
        ("optim.optimizer.lr: [1e-3]", r"optim\.optimizer\.lr must be a number, got '1e-3'"),
        ("model: [capsnett]", r"model=capsnett: no such option; have .*capsnet"),
        ("model: [cnn_small], loss: [margin]", r"loss=margin needs capsules"),
        ("model.routing.num_iters: [1]", r"is drawn from routing\.num_iters; set that"),
    ],
)
def test_a_place_that_cannot_be_run_is_named_with_its_file_and_arm(
    axes: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^small\.yaml: arm capsnet: .*{message}"):
        small(tmp_path, axes)
