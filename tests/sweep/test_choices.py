"""What is typed beside a sweep's name: ROUTING, SEEDS and overrides."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.errors import ConfigError, UserError
from capsweep.sweep import choices, expand, more_seeds, spec
from capsweep.sweep.choices import Choices
from capsweep.sweep.spec import Sweep

ITERATIONS = "routing.num_iters"
WEIGHT = "loss.reconstruction.weight"


@pytest.fixture(scope="module")
def ablation() -> Sweep:
    """The main sweep: arms cnn and capsnet, the latter with two axes."""
    return spec.load("ablation")


def space(sweep: Sweep, arm: str) -> dict[str, tuple]:
    """The axes of an arm."""
    return {
        axis.key: axis.values for each in sweep.arms if each.name == arm for axis in each.space.axes
    }


def fixed(sweep: Sweep, arm: str) -> list[str]:
    """What holds in all cells of an arm, as text."""
    overrides = [override for each in sweep.arms if each.name == arm for override in each.fixed]
    return [override.text for override in (*sweep.base, *overrides)]


@pytest.mark.parametrize(
    ("routing", "iterations", "variants"),
    [
        ("3", (3,), set()),
        ("1,3", (1, 3), set()),
        (" 5 , 2 ", (5, 2), set()),
        ("3,dynamic", (3,), {"dynamic"}),
    ],
)
def test_routing_pins_iterations_and_names_variants(
    routing: str, iterations: tuple[int, ...], variants: set[str], ablation: Sweep
) -> None:
    chosen = choices.apply_words(ablation, {"ROUTING": routing})
    assert space(chosen, "capsnet") == {ITERATIONS: iterations, WEIGHT: (0, 0.0005)}
    assert space(chosen, "cnn") == {}  # a network that does not route gets no such axis
    assert chosen.variants == variants


@given(count=st.integers(1, 200), more=st.integers(0, 50))
def test_a_larger_count_of_seeds_keeps_the_earlier_ones(
    ablation: Sweep, count: int, more: int
) -> None:
    few = choices.apply_words(ablation, {"SEEDS": str(count)})
    many = choices.apply_words(ablation, {"SEEDS": str(count + more)})
    assert few.seeds == tuple(range(count))
    assert many.seeds[:count] == few.seeds
    listed = choices.apply_words(ablation, {"SEEDS": f"{count}, 0"})
    assert listed.seeds == (count, 0)


def test_an_override_replaces_the_axis_of_an_arm_and_is_added_elsewhere(ablation: Sweep) -> None:
    typed = [f"{WEIGHT}=0", "batch_size=16,32", "model=capsnet", "experiment=digits"]
    for overrides in (typed, typed[::-1]):
        chosen = choices.apply_words(ablation, {}, overrides)
        assert space(chosen, "capsnet") == {
            ITERATIONS: (1, 3), WEIGHT: (0,), "batch_size": (16, 32),
        }  # fmt: skip
        assert space(chosen, "cnn") == {"batch_size": (16, 32)}
        assert f"{WEIGHT}=0" in fixed(chosen, "cnn")
        assert fixed(chosen, "cnn").count("model=capsnet") == 1
        assert fixed(chosen, "cnn").count("experiment=digits") == 1
        assert chosen.rows[-1] == "batch_size"


def test_a_new_axis_of_the_data_is_a_column_so_that_rows_are_compared_on_the_same_data() -> None:
    chosen = Choices(overrides=["dataset.source=digits,mnist", "batch_size=16,32"])
    sweep = choices.load_sweep("overlap", chosen)
    assert sweep.columns == ("dataset", "dataset.source")
    assert sweep.rows == ("arm", ITERATIONS, "batch_size")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"routing": "abc"}, r"^ROUTING=abc: 'abc' is neither a number of routing iterations"),
    ({"routing": "3,"}, "^ROUTING=3,: '' is neither"),
    ({"routing": "3,3"}, r"^ROUTING=3,3: routing\.num_iters has the value 3 twice"),
    (
        {"routing": "em", "arms": "capsnet"},
        "^ROUTING=em: no arm of .* has dynamic$",
    ),
    *(({"seeds": s}, f"^SEEDS={s}:? must be ") for s in ("0", "x", "", "1.5", "-1", "0,", "5,5")),
    ({"overrides": ["epochs=2", "epochs=3"]}, "^epochs=2 epochs=3: a key is overridden twice"),
    ({"overrides": ["epochs=2,2"]}, r"^epochs=2,2: epochs has the value 2 twice"),
    ({"overrides": ["seed=3"]}, "^seed is set by SEEDS"),
    ({"overrides": ["epochs=interval(1,3)"]}, "an interval has no finite list of values"),
    (
        {"metric": "test/acuracy"},
        r"table\.metric: .* is not measured; .*test/error",
    ),
    ({"metric": "test/at_least_one"}, "test/at_least_one is not measured"),
    ({"baseline": "capsnt"}, "^BASELINE=capsnt: no such arm; have cnn, capsnet"),
]


@pytest.mark.parametrize(("typed", "message"), REFUSED)
def test_what_cannot_be_meant_is_refused_by_its_variable(
    typed: dict[str, Any], message: str, ablation: Sweep
) -> None:
    with pytest.raises(ConfigError, match=message):
        expand.expand_sweep(choices.apply_words(ablation, {**typed}))


def test_differences_may_be_to_another_arm_but_where_arms_stop_at_the_baselines_accuracy(
    ablation: Sweep,
) -> None:
    sweep = choices.apply_words(ablation, {"BASELINE": "capsnet"})
    assert sweep.baseline == "capsnet"
    assert {point.arm for point in expand.expand_sweep(sweep)} == {"cnn", "capsnet"}
    with pytest.raises(ConfigError, match=r"arms of em_viewpoint\.yaml stop where cnn is as good"):
        choices.load_sweep("em_viewpoint", {"BASELINE": "capsnet"})


@pytest.mark.parametrize("last", ["x", "3", "-1", "9999999999", ""])
def test_a_bad_number_of_seeds_to_add_is_refused(last: str, ablation: Sweep) -> None:
    with pytest.raises(UserError, match=rf"^MORE_SEEDS={last}: must be above the 3 seeds"):
        more_seeds.plan_looks(ablation, last)


@pytest.mark.parametrize(
    ("name", "networks"),
    [
        ("ablation", {"cnn": "cnn_small", "capsnet": "capsnet_tiny"}),
        ("precision", {"float32": "capsnet_tiny", "bfloat16": "capsnet_tiny"}),
    ],
)
def test_another_model_is_that_of_all_arms_but_a_baseline_of_another_network(
    name: str, networks: dict[str, str]
) -> None:
    """Else one of several equal networks would be compared to a network of another size."""
    chosen = choices.load_sweep(name, {"MODEL": "capsnet_tiny", "SEEDS": "1"})
    found = {p.arm: p.cell.config["model"]["name"] for p in expand.expand_sweep(chosen)}
    assert found == networks


@pytest.mark.parametrize(
    ("typed", "variation", "folder"),
    [
        ({}, [], "ablation"),
        ({"overrides": ["epochs=1", "trainer.threads=2"]}, ["epochs 1"], "ablation-epochs-1"),
        ({"seeds": "3", "metric": "test/error"}, [], "ablation"),  # as the file has them
        ({"seeds": "2,1,0"}, [], "ablation"),
        ({"seeds": "1,0", "arms": "cnn,capsnet"}, ["arms capsnet,cnn", "seeds 2"], None),
        ({"overrides": ["precision='32'"]}, ["precision 32"], None),
        ({"seeds": "0,1", "routing": " 1, 3"}, ["routing 1,3", "seeds 2"], None),
        ({"overrides": ["loss=margin,spread"]}, ["loss margin,spread"], None),
        ({"overrides": ["model=capsnet"]}, ["model=capsnet"], "ablation-model=capsnet"),
        ({"model": "capsnet"}, ["model capsnet"], "ablation-model-capsnet"),
        ({"metric": "val/loss"}, ["metric val/loss"], "ablation-metric-val-loss"),
        (
            {"excludes": ["arm=cnn a=1"], "zips": ["epochs,batch_size"]},
            ["exclude arm=cnn a=1", "zip epochs,batch_size"],
            "ablation-exclude-arm=cnn-a=1-zip-epochs,batch_size",
        ),
    ],
)
def test_a_report_is_called_after_what_was_typed(
    ablation: Sweep, typed: dict[str, Any], variation: list[str], folder: str | None
) -> None:
    words = choices.describe_choices(ablation, Choices(**typed))
    assert list(words) == variation
    name = replace(ablation, variation=words).report_name
    assert name == (folder or "-".join(["ablation", *words]).replace(" ", "-"))


def test_the_name_of_a_report_is_short_safe_and_its_own(ablation: Sweep) -> None:
    def name(*words: str) -> str:
        return replace(ablation, variation=words).report_name

    names = [name("a/../b*c"), name("a/../b?c"), name("x" * 300), name("x" * 301)]
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"ablation-[A-Za-z0-9_.,=-]{2,90}", each) for each in names)


CNN = "arm cnn cannot take"
TAKEN: list[tuple[str, str, str, list[str]]] = [
    ("ablation", "loss=margin,spread", "loss", [f"{CNN} loss: loss=margin needs capsules, "]),
    ("ablation", "loss=spread", "", [f"{CNN} loss: loss=spread needs capsules, not model="]),
    ("ablation", "loss=margin,cross_entropy", "loss", [f"{CNN} loss=margin: loss="]),
    ("overlap", "model.primary.types=4,8", "model.primary.types", [f"{CNN} model.primary.types"]),
    (
        "overlap",
        "routing.gradient=full,last",
        "routing.gradient",
        [f"{CNN} routing.gradient: mo"],
    ),
    (
        "ablation",
        "loss.classification.absent=0.1,0.2",
        "loss.classification.absent",
        [f"{CNN} loss.classification.absent: loss.classification.absent: no such key here"],
    ),
    ("ablation", "batch_size=16,32", "batch_size", []),
]


@pytest.mark.parametrize(("name", "typed", "row", "notes"), TAKEN)
def test_a_typed_part_is_set_in_the_arms_that_can_take_it_and_the_others_are_named(
    name: str, typed: str, row: str, notes: list[str]
) -> None:
    chosen = choices.load_sweep(name, {"SEEDS": "1", "ROUTING": "3"}, [typed])
    points = expand.expand_sweep(chosen)
    expand.check_distinct_fields(chosen, points)
    key, _, values = typed.partition("=")
    taken = {str(p.coordinate(key)) for p in points if p.arm == "capsnet"}
    assert taken == set(values.split(","))
    assert len(chosen.notes) == len(notes)
    assert all(note.startswith(start) for note, start in zip(chosen.notes, notes, strict=True))
    assert (chosen.rows[-1] == row) == bool(row)
    assert len([p for p in points if p.arm == "cnn"]) == (2 if not notes else 1)


def test_typed_parts_may_need_one_another_in_any_order() -> None:
    typed = ["loss=spread", "model.pose=vector", "model=matrix_capsnet_tiny"]
    for overrides in (typed, typed[::-1]):
        chosen = choices.load_sweep("ablation", {"RECON": "off"}, overrides)
        assert chosen.notes == ()
        assert {p.coordinate("loss") for p in expand.expand_sweep(chosen)} == {"spread"}


def test_a_variant_takes_the_place_of_another_in_a_network_that_is_typed() -> None:
    typed = ["model.head=linear", "loss=cross_entropy"]
    with pytest.raises(ConfigError, match=r"no arm of ablation\.yaml can take it"):
        choices.load_sweep("ablation", {"ROUTING": "inverted_attention"})
    chosen = choices.load_sweep("ablation", {"ROUTING": "inverted_attention"}, typed)
    points = [p for p in expand.expand_sweep(chosen) if p.arm == "inverted_attention"]
    assert {p.cell.config["model"]["head"] for p in points} == {"linear"}
    assert {p.coordinate("routing.num_iters") for p in points} == {1, 3}


@pytest.mark.parametrize(
    ("name", "typed", "message"),
    [
        (
            "ablation",
            "loss=margin,none",
            r"^ablation\.yaml: arms cnn, capsnet: loss=none: no such op",
        ),
        ("ablation", "lr=0.1", r"arm cnn: lr: no such key; did you mean optim\.optimizer\.lr\?"),
        (
            "ablation",
            "routing.num_iters=0",
            r"arms cnn, capsnet: routing\.num_iters must be in .* 0",
        ),
        (
            "em_mnist",
            "loss=margin,spread",
            r"set loss=cross_entropy; arms control, em: loss.reconstruction.weight needs a .* to 0",
        ),
    ],
)
def test_what_no_arm_can_take_and_data_that_one_cannot_are_refused(
    name: str, typed: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        expand.expand_sweep(choices.load_sweep(name, {}, [typed]))
