"""A file put into conf/routing is a variant that a sweep can name, add with an optional arm, or put
in the place of the routing of its arms.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand, variants
from capsweep.sweep.spec import Sweep

SWEEP = """\
question: Does the new variant beat dynamic routing?
base: []
seeds: [0]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small]}
  capsnet: {space: {routing.num_iters: [1, 3], loss.reconstruction.weight: [0, 0.0005]}}
  control: {optional: true, fixed: [routing=dynamic, routing.num_iters=1]}
  new: {NEW fixed: [routing=new], space: {routing.num_iters: [2, 3]}}
table: {rows: [arm, routing.num_iters], columns: [dataset], metric: test/error}
"""
STANDING = {"cnn": 1, "capsnet": 4}


@pytest.mark.parametrize(
    ("typed", "key", "expected"),
    [
        (None, "optional: true,", STANDING),
        ("new", "optional: true,", {**STANDING, "control": 1, "new": 2}),
        ("new,3", "optional: true,", {"cnn": 1, "capsnet": 2, "control": 1, "new": 1}),
        (None, "", {**STANDING, "new": 2}),
        ("new", "", {"cnn": 1, "control": 1, "new": 2}),
    ],
)
def test_naming_a_variant_keeps_its_arms_or_adds_an_optional_one(
    typed: str | None,
    key: str,
    expected: dict[str, int],
    conf_tree: Callable[[], Path],
    tmp_path: Path,
) -> None:
    """typed: as ROUTING. expected: places of each arm, in the order of the file."""
    routing = conf_tree() / "routing"
    text = (routing / "dynamic.yaml").read_text()
    (routing / "new.yaml").write_text(text.replace("name: dynamic", "name: new"))
    path = tmp_path / "small.yaml"
    path.write_text(SWEEP.replace("NEW", key))
    points = expand.expand_sweep(choices.load_sweep(str(path), {"ROUTING": typed}))
    arms = [point.arm for point in points]
    assert {arm: arms.count(arm) for arm in arms} == expected
    assert list(dict.fromkeys(arms)) == list(expected)


UNAWARE = """\
question: Routing iterations?
base: [experiment=digits]
seeds: [0]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small]}
  capsnet: {space: {routing.num_iters: [1, 3], loss.reconstruction.weight: [0, 0.0005]}}
  control: {optional: true, fixed: [model=matrix_capsnet_tiny, routing=em, routing.num_iters=1]}
  em: {optional: true, fixed: [model=matrix_capsnet_tiny, routing=em, routing.norm=types]}
table:
  rows: [arm, routing.num_iters, loss.reconstruction.weight]
  columns: [dataset]
  metric: test/error
published:
  source: a page
  values:
    - {arm: cnn, value: 0.1}
    - {arm: capsnet, value: 0.2}
    - {arm: control, value: 0.3}
    - {value: 0.4}
"""
TAKES = "routing=new takes the place of dynamic in arm capsnet"
BESIDE = "routing=new stands beside dynamic in arm capsnet"
OF_CAPSNET = "arm control_capsnet is capsnet with one iteration: equal couplings"


@pytest.fixture
def load_unaware(conf_tree: Callable[[], Path], tmp_path: Path) -> Callable[..., Sweep]:
    """A sweep of which no arm names `new`; edits: of dynamic routing's file, to be that of new."""

    def load(edits: dict[str, str], file: str = UNAWARE, **typed: str) -> Sweep:
        routing = conf_tree() / "routing"
        text = (routing / "dynamic.yaml").read_text()
        for old, new in edits.items():
            assert old in text
            text = text.replace(old, new)
        (routing / "new.yaml").write_text(text)
        path = tmp_path / "unaware.yaml"
        path.write_text(file)
        return choices.load_sweep(str(path), {**typed})

    return load


NAMED = {"name: dynamic": "name: new"}


@pytest.mark.parametrize(
    ("typed", "expected", "notes"),
    [
        ({"routing": "new"}, {"cnn": 1, "control_capsnet": 2, "new": 4}, [TAKES, OF_CAPSNET]),
        (
            {"routing": "new,control"},
            {"cnn": 1, "control_capsnet": 2, "new": 4},
            [TAKES, OF_CAPSNET],
        ),
        ({"routing": "new,3"}, {"cnn": 1, "control_capsnet": 2, "new": 2}, [TAKES, OF_CAPSNET]),
        (
            {"routing": "new", "recon": "off"},
            {"cnn": 1, "control_capsnet": 1, "new": 2},
            [TAKES, OF_CAPSNET],
        ),
        (
            {"routing": "new", "arms": "capsnet"},
            {"cnn": 1, "control_capsnet": 2, "new": 4},
            [TAKES, OF_CAPSNET],
        ),
        (
            {"routing": "new,dynamic"},
            {"cnn": 1, "capsnet": 4, "control_capsnet": 2, "new": 4},
            [BESIDE, OF_CAPSNET],
        ),
        (
            {"routing": "new,em"},
            {"cnn": 1, "control_capsnet": 2, "new": 4, "control": 1, "em": 1},
            [TAKES, OF_CAPSNET],
        ),
        (
            {"routing": "new", "arms": "em"},
            {"cnn": 1, "control": 1, "new": 1},
            ["routing=new takes the place of em in arm em"],
        ),
    ],
)
def test_a_variant_that_no_arm_names_takes_the_place_of_the_routing_of_arms(
    typed: dict[str, str],
    expected: dict[str, int],
    notes: list[str],
    load_unaware: Callable[..., Sweep],
) -> None:
    sweep = load_unaware(NAMED, **typed)
    points = expand.expand_sweep(sweep)
    expand.check_distinct_fields(sweep, points)
    arms = [point.arm for point in points]
    assert {arm: arms.count(arm) for arm in arms} == expected
    assert [arm for arm in dict.fromkeys(arms) if arm != "control"] == [
        arm for arm in expected if arm != "control"
    ]
    assert list(sweep.notes) == notes
    networks = {arm: {p.coordinate("model") for p in points if p.arm == arm} for arm in arms}
    controls = [p for p in points if p.arm.startswith("control")]
    assert networks["new"] <= {p.coordinate("model") for p in controls}
    assert {p.coordinate("routing.num_iters") for p in controls} == {1}
    assert "new" not in {p.coordinate("routing") for p in controls}


def test_published_numbers_stay_beside_the_arms_that_they_are_of(
    load_unaware: Callable[..., Sweep],
) -> None:
    values = load_unaware(NAMED, routing="new").published.values
    numbers = {(value["arm"], value["value"]) for value in values}
    assert numbers == {("cnn", 0.1), ("cnn", 0.4), ("em", 0.4)}


def test_axes_that_a_variant_does_not_know_go_with_the_routing_that_had_them(
    load_unaware: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "network_size", lambda config: None)  # no such class is there
    points = expand.expand_sweep(load_unaware(NAMED | {"num_iters: 3": ""}, routing="new"))
    new = [p.title for p in points if p.arm == "new"]
    assert new == [f"new · loss.reconstruction.weight={weight}" for weight in ("0", "0.0005")]


def test_no_new_arm_has_a_name_of_the_file_whose_arm_may_be_another(
    load_unaware: Callable[..., Sweep],
) -> None:
    file = UNAWARE.replace(
        "  em: {", "  control_capsnet: {fixed: [model=cnn_small]}\n  new: {}\n  em: {"
    )
    sweep = load_unaware(NAMED, file, routing="new")
    names = [arm.name for arm in sweep.arms]
    assert len(names) == len(set(names))
    assert {"control_capsnet_2", "capsnet_new"} <= set(names)
    assert "control" not in names


OTHERS = """\
  stopped: {matched: true, space: SPACE}
  last: {fixed: [routing.gradient=last], space: SPACE}
  narrow: {fixed: [model.primary.types=2, loss.reconstruction.weight=0]}
exclude:
  - {arm: capsnet, routing.num_iters: 3, loss.reconstruction.weight: 0}
table:
"""
SPACE = "{routing.num_iters: [1, 3], loss.reconstruction.weight: [0, 0.0005]}"


def test_a_variant_is_put_into_arms_that_differ_otherwise_and_each_network_has_a_control(
    load_unaware: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "network_size", lambda config: None)  # no such class is there
    file = UNAWARE.replace("table:\n", OTHERS.replace("SPACE", SPACE))
    sweep = load_unaware(NAMED | {"gradient: full": ""}, file, routing="new")
    arms = [point.arm for point in expand.expand_sweep(sweep)]
    assert {arm: arms.count(arm) for arm in arms} == {
        "cnn": 1, "control_capsnet": 2, "capsnet_new": 3, "stopped_new": 4,
        "control_narrow": 1, "narrow_new": 1,
    }  # fmt: skip
    assert [arm.name for arm in sweep.arms if arm.matched] == ["stopped_new"]
    assert any(note.startswith("arm last cannot take routing=new: it diff") for note in sweep.notes)


IDENTITY = {
    "_target_: capsweep.model.routing.dynamic.DynamicRouting": "_target_: torch.nn.Identity"
}


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (
            NAMED | IDENTITY,
            r"^ROUTING=new: no arm of unaware\.yaml can take it: arm cnn: model=cnn_small does not "
            r"route; arms capsnet, em: TypeError: Identity\.forward",
        ),
        (
            {"DynamicRouting": "NewRouting", **NAMED},
            "arms capsnet, em: .*NewRouting cannot be found",
        ),
        ({"impl: auto": "impl: auto"}, r"^conf/routing/new\.yaml: name must be new, got dynamic$"),
    ],
)
def test_a_variant_that_no_arm_can_take_is_refused_with_the_reason_of_each(
    edits: dict[str, str], message: str, load_unaware: Callable[..., Sweep]
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_unaware(edits, routing="new")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {("cnn", "binary_cross_entropy"), ("capsnet", "margin"), ("capsnet", "new")}),
        ("on_logits: true", {("cnn", "new"), ("capsnet", "margin"), ("capsnet", "new")}),
    ],
)
def test_a_file_put_into_conf_loss_is_compared_in_the_arms_that_can_take_it(
    line: str, expected: set[tuple[str, str]], conf_tree: Callable[[], Path]
) -> None:
    (conf_tree() / "loss" / "new.yaml").write_text(
        f"{line}\nname: new\nclassification: {{_target_: capsweep.model.new_loss.new_loss}}\n"
        "reconstruction: {weight: 0.0}\n"
    )
    sweep = choices.load_sweep("overlap", {"SEEDS": "1"}, ["loss=margin,new"])
    points = expand.expand_sweep(sweep)
    assert {(point.arm, point.coordinate("loss")) for point in points} == expected


def test_a_preset_sets_no_key_that_another_routing_does_not_have(
    conf_tree: Callable[[], Path],
) -> None:
    text = "_target_: capsweep.model.routing.new.New\n_partial_: true\nname: new\nimpl: reference\n"
    conf = conf_tree()
    (conf / "routing" / "new.yaml").write_text(text)
    typo = "# @package _global_\nrouting: {norm: types}\n"
    (conf / "experiment" / "typo.yaml").write_text(typo)
    preset = ["experiment=em/digits"]
    assert "num_iters" in compose.cell(preset).config["routing"]
    routing = compose.cell([*preset, "routing=new"]).config["routing"]
    assert routing.keys() == {"_target_", "_partial_", "name", "impl"}
    with pytest.raises(
        ConfigError, match=r"^conf/experiment/typo\.yaml: routing\.norm: no such key"
    ):
        compose.cell(["experiment=typo"])  # its own routing lacks it
