"""The grid of a sweep: arms and axes of its file, what is typed beside its name, and its cells."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.sweep import choices, expand, plan
from capsweep.sweep.expand import Point

TEXT = """\
question: Which places?
base: [experiment=digits]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small]}
ARMS
table: {rows: [arm, routing.num_iters], columns: [dataset], metric: test/error}
"""
AXIS = "space: {routing.num_iters: [1, 3]}"
ARMS = f"""\
  deep: {{fixed: [model=capsnet_small], {AXIS}}}
  other: {{fixed: [model=capsnet_small, routing=uniform]}}
"""
Expand = Callable[..., list[Point]]


@pytest.fixture
def expand_file(tmp_path: Path) -> Expand:
    """The points of a sweep with these arms, and what is typed beside its name."""

    def expanded(arms: str, overrides: Sequence[str] = (), **words: str):
        path = tmp_path / "small.yaml"
        path.write_text(TEXT.replace("ARMS\n", arms))
        return expand_named(str(path), overrides, **words)

    return expanded


def expand_named(name: str, overrides: Sequence[str] = (), **words: str) -> list[Point]:
    """The points of a sweep, with the words that are typed beside its name."""
    return expand.expand_sweep(choices.load_sweep(name, words, overrides))


def list_places(points: list[Point], arm: str = "") -> list[str]:
    """Titles without repetition and without the names of keys, in order."""
    titles = dict.fromkeys(point.title for point in points if point.arm.startswith(arm))
    parts = (title.split(" · ") for title in titles)
    return [" ".join(part.rpartition("=")[2] for part in title) for title in parts]


def make_arm(space: str) -> str:
    """An arm `caps` with this space."""
    return f"  caps: {{fixed: [model=capsnet_small], space: {space}}}\n"


def test_arms_of_equal_cells_share_their_runs(expand_file: Expand, tmp_path: Path) -> None:
    points = expand_file(ARMS, ROUTING="uniform")
    planned = plan.make_plan(points, Ledger(str(tmp_path)))
    assert (len(planned.cells), planned.count_equivalent()) == (4, 2)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ('routing.num_iters: "1,3"', ["1", "3"]),
        ('routing.num_iters: "range(1,4)"', ["1", "2", "3"]),
        ("routing.num_iters: [4]", ["4"]),
        (
            "routing.num_iters: [1, 3], zip: {epochs: [1, 2], batch_size: [64, 32]}",
            ["1 1 64", "1 2 32", "3 1 64", "3 2 32"],
        ),
        ("zip: {epochs: [1, 1], batch_size: [64, 32]}", ["1 64", "1 32"]),
    ],
)
def test_axes_are_lists_hydras_sweep_grammar_or_coupled(
    space: str, expected: list[str], expand_file: Expand
) -> None:
    points = expand_file(make_arm(f"{{{space}}}"))
    assert list_places(points, "caps") == [f"caps {place}" for place in expected]


def test_axes_are_coupled_on_the_command_line(expand_file: Expand) -> None:
    overrides = ["epochs=1,2", "batch_size=8,16"]
    points = expand_file(make_arm("{}"), overrides, ZIP="epochs,batch_size")
    assert list_places(points, "caps") == ["caps 1 8", "caps 2 16"]
    by_words = expand_file(make_arm("{}"), overrides, ZIP="EPOCHS,BATCH", EXCLUDE="EPOCHS=1")
    assert list_places(by_words, "caps") == ["caps 2 16"]


def test_a_typed_key_that_is_coupled_with_a_column_names_no_row() -> None:
    overrides = ["epochs=6,24", "optim.schedule.steps=70,281"]
    sweep = choices.load_sweep("routing_converged", {}, overrides)
    assert sweep.rows == ("arm",)


GRID = "{routing.num_iters: [1, 3], loss.reconstruction.weight: [0, 0.0005]}"
ZIP = "{zip: {epochs: [1, 2], batch_size: [64, 32]}}"
TWICE = "epochs,batch_size;batch_size,optim.optimizer.lr"
AXES = ["epochs=1,2", "batch_size=8,16", "optim.optimizer.lr=0.1,0.2"]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (ZIP, {"overrides": ["batch_size=8,16,32"]}, "BATCH=8,16,32: arm caps: zip: coupled axes"),
    ("{}", {"ZIP": "epochs,seed"}, "ZIP=epochs,seed: no arm of "),
    ("{}", {"overrides": AXES, "ZIP": TWICE}, "batch_size is coupled twice"),
    (GRID, {"EXCLUDE": "arm=caps"}, "no cell of arm caps; to leave out an arm, type ARMS=cnn;"),
    (GRID, {"EXCLUDE": "arm=cnn"}, "of arm cnn; .*, type ARMS=caps BASELINE=caps;"),
    (GRID, {"EXCLUDE": ";"}, "EXCLUDE leaves no cell of arm .*; to leave out an arm"),
    (GRID, {"EXCLUDE": "epochs=9", "ROUTING": "1"}, "epochs=9': no cell of .* has these values"),
    (GRID, {"RECON": "maybe"}, "RECON=maybe: 'maybe' must be on, off or a number"),
    ("{epochs: [1, 2]}", {"RECON": "on"}, r"RECON: no chosen arm of small\.yaml has the axis"),
    (GRID, {"ARMS": "cats"}, "ARMS=cats: no arm 'cats'; small.yaml has cnn, caps"),
    ('{dataset: "glob(x*)"}', {}, r"dataset=glob\(x\*\): glob\(\) is not supported"),
    ('{optim.optimizer.lr: "interval(0.0001, 0.01)"}', {}, "or set kind: search"),
    ("{routing.num_iter: [1]}", {}, r"arm caps: routing\.num_iter: no such key; did you mean"),
    ("{routing.num_iters: [1, 0]}", {}, r"arm caps: routing\.num_iters must be .*, got 0"),
]


@pytest.mark.parametrize(("space", "typed", "message"), REFUSED)
def test_what_cannot_be_meant_or_run_is_refused(
    space: str, typed: dict[str, Any], message: str, expand_file: Expand
) -> None:
    with pytest.raises(ConfigError, match=message):
        expand_file(make_arm(space), **typed)


def test_excluded_places_are_left_out(expand_file: Expand) -> None:
    typed = "routing.num_iters=1 loss.reconstruction.weight=0; loss.reconstruction.weight=7"
    space = GRID.replace("0.0005]", "0.0005, 7]")
    places = list_places(expand_file(make_arm(space), EXCLUDE=typed), "caps")
    assert places == ["caps 1 0.0005", "caps 3 0", "caps 3 0.0005"]


def test_recon_sets_the_reconstruction_weight(expand_file: Expand) -> None:
    points = expand_file(make_arm("{loss.reconstruction.weight: [0, 7]}"), RECON="off,on,0.1")
    assert list_places(points, "caps") == ["caps 0.0", "caps 0.0005", "caps 0.1"]


def test_the_main_question_and_routing_3_of_it() -> None:
    points, pinned = expand_named("ablation"), expand_named("ablation", ROUTING="3")
    assert list_places(points) == [
        "cnn", "capsnet 1 0", "capsnet 1 0.0005", "capsnet 3 0", "capsnet 3 0.0005",
    ]  # fmt: skip
    assert list_places(pinned) == ["cnn", "capsnet 3 0", "capsnet 3 0.0005"]
    assert [point.cell.config["seed"] for point in points] == [0, 1, 2] * 5
    signatures, pinned_ones = ({p.cell.signature for p in some} for some in (points, pinned))
    assert (len(signatures), len(pinned_ones)) == (15, 9)
    assert pinned_ones < signatures
    assert {point.cell.config["routing"]["num_iters"] for point in pinned[3:]} == {3}
