"""The control and optional arms: which are run, by what ROUTING and ARMS name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.report import table
from capsweep.sweep import choices, expand, plan, spec
from capsweep.sweep.choices import Choices
from capsweep.sweep.expand import Point

FIXED = "fixed: [model=capsnet_small, routing=dynamic, routing.num_iters=1]"
AXIS = "space: {routing.num_iters: [1, 3]}"
ARMS = f"""\
  cnn: {{fixed: [model=cnn_small]}}
  deep: {{fixed: [model=capsnet_small], {AXIS}}}
  control: {{optional: true, {FIXED}}}
"""
MORE = f"""\
  matched: {{fixed: [model=cnn_small, batch_size=16]}}
  wide: {{optional: true, fixed: [model=capsnet_small, batch_size=16], {AXIS}}}
"""
TEXT = """\
question: Which arms are run?
base: [experiment=digits]
seeds: [0, 1]
baseline: cnn
arms:
ARMS
table: {rows: [arm, routing.num_iters], columns: [dataset], metric: test/error}
"""

Points = Callable[..., list[Point]]


@pytest.fixture
def points(tmp_path: Path) -> Points:
    """The points of a sweep with these arms, and what is typed beside its name."""

    def expanded(content: str, more: str = "", /, **typed: object) -> list[Point]:
        path = tmp_path / "small.yaml"
        path.write_text(TEXT.replace("ARMS\n", content) + more)
        return expand.expand_sweep(choices.load_sweep(str(path), Choices(**typed)))

    return expanded


def places(points: list[Point]) -> list[str]:
    """Arms and their routing iterations, without repetition, in order."""
    titles = (point.title.replace(" · routing.num_iters=", " ") for point in points)
    return list(dict.fromkeys(titles))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ({}, ["cnn", "deep 1", "deep 3"]),
        ({"routing": "3"}, ["cnn", "deep 3"]),
        ({"routing": "dynamic"}, ["cnn", "deep 1", "deep 3", "control"]),
        ({"routing": "dynamic,3"}, ["cnn", "deep 3", "control"]),
        ({"routing": "control"}, ["cnn", "control"]),
        ({"arms": "control"}, ["cnn", "control"]),
        ({"arms": "control,deep", "routing": "3"}, ["cnn", "deep 3", "control"]),
        ({"arms": "deep", "routing": "dynamic"}, ["cnn", "deep 1", "deep 3"]),
    ],
)
def test_an_optional_control_is_run_where_routing_or_arms_names_something(
    typed: dict[str, str], expected: list[str], points: Points
) -> None:
    found = points(ARMS, **typed)
    assert places(found) == expected
    iterations = {p.cell.config["routing"]["num_iters"] for p in found if p.arm == "control"}
    assert iterations <= {1}


def test_a_control_can_be_the_baseline(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    arms = ARMS.replace("optional: true, ", "")
    path.write_text(TEXT.replace("ARMS\n", arms).replace("baseline: cnn", "baseline: control"))
    found = expand.expand_sweep(choices.load_sweep(str(path), Choices(routing="control")))
    assert places(found) == ["control"]


def test_the_control_is_the_cell_of_one_iteration_and_shares_its_run(
    points: Points, tmp_path: Path
) -> None:
    found = points(ARMS, routing="dynamic")
    control = next(p for p in found if p.title == "control")
    same = compose.cell(["experiment=digits", "model=capsnet_small", "routing.num_iters=1"])
    assert control.cell.signature == same.signature
    assert (control.coordinate("routing"), control.coordinate("routing.num_iters")) == (
        "dynamic",
        1,
    )
    planned = plan.make_plan(found, Ledger(str(tmp_path)))
    assert (len(planned.cells), planned.count_equivalent()) == (6, 2)
    sweep = spec.load(str(tmp_path / "small.yaml"))
    rows = table.build_table(sweep, found, Ledger(str(tmp_path))).rows
    assert [row.coordinates for row in rows] == [
        ("cnn", None),
        ("deep", 1),
        ("deep", 3),
        ("control", 1),
    ]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ({}, ["cnn", "deep 1", "deep 3", "matched"]),
        ({"routing": "dynamic,3"}, ["cnn", "deep 3", "control", "matched", "wide 3"]),
        ({"routing": "control"}, ["cnn", "control"]),
        ({"arms": "wide", "routing": "dynamic"}, ["cnn", "wide 1", "wide 3"]),
    ],
)
def test_an_arm_that_does_not_route_is_a_control_too_but_for_routing_control(
    typed: dict[str, str], expected: list[str], points: Points
) -> None:
    assert places(points(ARMS + MORE, **typed)) == expected


@pytest.mark.parametrize(
    ("arms", "more", "message"),
    [
        ("  spare: {optional: true, fixed: [epoch=3]}\n", "", "arm spare: epoch: no such key"),
        ("", "exclude: [{arm: control, epochs: 99}]\n", "exclude: no place has arm=control, epo"),
    ],
)
def test_a_file_is_checked_with_the_optional_arms_that_are_not_run(
    arms: str, more: str, message: str, points: Points
) -> None:
    for typed in ({}, {"routing": "3"}, {"overrides": ["epochs=2"]}):
        with pytest.raises(ConfigError, match=rf"^small\.yaml: {message}"):
            points(ARMS + arms, more, **typed)


def test_routing_control_needs_that_arm(points: Points) -> None:
    without = ARMS.replace("  control:", "  other:")
    for routing in ("control", "dynamic,control"):
        told = rf"^ROUTING={routing}: small\.yaml has no arm control; have cnn, deep, other$"
        with pytest.raises(ConfigError, match=told):
            points(without, routing=routing)
    with pytest.raises(ConfigError, match=r"has no arm control; have cnn, deep$"):
        points(ARMS, arms="deep", routing="control")


@pytest.mark.parametrize("typed", ["3", "1,3"])
def test_an_override_never_makes_the_control_route(typed: str, points: Points) -> None:
    routed = points(ARMS, routing="dynamic", overrides=[f"routing.num_iters={typed}"])
    assert {p.coordinate("routing.num_iters") for p in routed if p.arm == "control"} == {1}
    assert {p.coordinate("routing.num_iters") for p in routed if p.arm == "deep"} == {
        int(number) for number in typed.split(",")
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("routing.num_iters=1]", "routing.num_iters=2]", r"control: routing\.num_iters must be"),
        (", routing.num_iters=1]", "]", r"control: routing\.num_iters must be fixed to 1, in arms"),
        (FIXED, AXIS, r"control: routing\.num_iters must be fixed to 1, in arms\.control\.fixed"),
        (FIXED, f"{FIXED}, {AXIS}", r"control: routing\.num_iters is set twice"),
        ("cnn: {", "cnn: {optional: true, ", r"cnn\.optional: never of the baseline"),
        ("optional: true", "optional: maybe", r"control\.optional must be true or false, got may"),
        ("optional:", "optinal:", r"control: optinal: no such key; did you mean optional\?"),
    ],
)
def test_a_faulty_arm_is_refused_with_its_file_and_key(
    old: str, new: str, message: str, points: Points
) -> None:
    assert old in ARMS
    with pytest.raises(ConfigError, match=rf"^small\.yaml: arms\.{message}"):
        points(ARMS.replace(old, new))
