"""What the words of a command line do to a sweep."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.config import package_files
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand, spec
from capsweep.sweep.spec import Sweep

ITERATIONS = "routing.num_iters"
WEIGHT = "loss.reconstruction.weight"


@pytest.fixture(scope="module")
def ablation() -> Sweep:
    """The main sweep: arms cnn and capsnet, the latter with two axes."""
    return spec.load("ablation")


def space(sweep: Sweep, arm: str) -> dict[str, tuple]:
    """The axes of an arm."""
    return {axis.key: axis.values for each in sweep.arms if each.name == arm for axis in each.axes}


def fixed(sweep: Sweep, arm: str) -> list[str]:
    """What holds in all cells of an arm, as text."""
    overrides = [override for each in sweep.arms if each.name == arm for override in each.fixed]
    return [override.text for override in overrides]


def places(name: str, words: dict[str, str], *overrides: str) -> list[str]:
    """The places of a sweep, as titles without the names of keys."""
    points = expand.expand_sweep(choices.load_sweep(name, {"SEEDS": "1", **words}, overrides))
    parts = (point.title.split(" · ") for point in points)
    return [" ".join(part.rpartition("=")[2] for part in title) for title in parts]


@pytest.mark.parametrize(
    ("routing", "expected"),
    [
        ("3", ["3 0"]),
        ("1,3", ["1 0", "3 0"]),
        (" 5 , 2 ", ["5 0", "2 0"]),
        ("uniform", ["uniform 0"]),
        ("dynamic", ["dynamic 1 0", "dynamic 3 0"]),
        ("3,uniform", ["dynamic 3 0", "uniform 0"]),
        ("uniform,em", ["uniform 0", "em 1 0", "em 3 0"]),
        ("3,uniform,em", ["dynamic 3 0", "uniform 0", "em 3 0"]),
        ("3,em,dynamic", ["dynamic 3 0", "em 3 0"]),
    ],
)
def test_routing_is_an_axis_of_the_arms_that_route(routing: str, expected: list[str]) -> None:
    """Numbers are iterations, names are routings; a number beside names adds the arm's own."""
    words = {"RECON": "0"}
    found = places("ablation", {**words, "ROUTING": routing})
    assert found == ["cnn", *(f"capsnet {place}.0" for place in expected)]


def test_a_routing_may_be_typed_as_hydra_has_it() -> None:
    by_name = choices.load_sweep("ablation", {"ROUTING": "uniform,em"})
    by_key = choices.load_sweep("ablation", {}, ["routing=uniform,em"])
    assert by_name.arms == by_key.arms
    assert by_name.rows == ("arm", "routing", ITERATIONS, WEIGHT)
    assert by_name.words == ("ROUTING=uniform,em",)


def test_what_an_arm_fixes_of_its_routing_is_left_out_of_routings_that_lack_it(
    tmp_path: Path,
) -> None:
    text = (package_files.find_folder("sweeps") / "ablation.yaml").read_text()
    fixed_keys = "fixed: [model=capsnet_small, routing.num_iters=2, routing.gradient=last]"
    text = text.replace("fixed: [model=capsnet_small]", fixed_keys)
    text = text.replace("      routing.num_iters: [1, 3]\n", "")
    (tmp_path / "mine.yaml").write_text(text)
    words = {"ROUTING": "uniform,em,dynamic", "RECON": "0"}
    assert places(str(tmp_path / "mine.yaml"), words)[1:] == [
        *("capsnet uniform 0.0", "capsnet em 2 0.0", "capsnet dynamic 2 last 0.0"),
    ]


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


def test_keys_of_the_network_go_to_arms_that_route_and_all_others_to_all(ablation: Sweep) -> None:
    typed = [f"{WEIGHT}=0", "batch_size=16,32", "model=capsnet", "experiment=digits"]
    typed.append("loss.class_weight=balanced")  # which every network takes
    for overrides in (typed, typed[::-1]):
        chosen = choices.apply_words(ablation, {}, overrides)
        assert space(chosen, "capsnet") == {
            ITERATIONS: (1, 3), WEIGHT: (0,), "batch_size": (16, 32),
        }  # fmt: skip
        assert space(chosen, "cnn") == {"batch_size": (16, 32)}
        assert "model=capsnet" in fixed(chosen, "capsnet")
        assert {"model=cnn_small", "loss.class_weight=balanced"} <= {*fixed(chosen, "cnn")}
        assert f"{WEIGHT}=0" not in fixed(chosen, "cnn")
        assert fixed(chosen, "cnn").count("experiment=digits") == 1
        assert chosen.rows[-1] == "batch_size"


def test_keys_of_the_network_go_to_all_arms_where_none_routes() -> None:
    chosen = choices.load_sweep("ablation", {"ARMS": "cnn"}, ["model.dropout=0.1,0.2"])
    assert space(chosen, "cnn") == {"model.dropout": (0.1, 0.2)}


def test_a_new_axis_of_the_data_is_a_column_so_that_rows_are_compared_on_the_same_data() -> None:
    chosen = ["dataset.source=digits,mnist", "batch_size=16,32"]
    sweep = choices.load_sweep("overlap", {}, chosen)
    assert sweep.columns == ("dataset", "dataset.source")
    assert sweep.rows == ("arm", ITERATIONS, "batch_size")


REFUSED: list[tuple[dict[str, str], list[str], str]] = [
    ({"ROUTING": "abc"}, [], r"^ROUTING=abc: 'abc' is neither a number .*uniform"),
    ({"ROUTING": "3,"}, [], "^ROUTING=3,: '' is neither a number"),
    ({"ROUTING": "3,3"}, [], r"^ROUTING=3,3: routing\.num_iters has the value 3 twice"),
    ({"ROUTING": "em", "ARMS": "cnn"}, [], r"^ROUTING=em: no arm of ablation\.yaml routes"),
    ({"ROUTING": "3", "ARMS": "cnn"}, [], r"^ROUTING: no chosen arm of .* has the axis routing"),
    ({"ROUTING": "3"}, [f"{ITERATIONS}=2"], r"^ROUTING and routing\.num_iters: set twice"),
    ({"ROUTING": "3"}, ["routing=em"], "^ROUTING and routing: set twice; keep one"),
    ({"ROUTING": "uniform"}, [f"{ITERATIONS}=2"], r"num_iters: no routing of this arm has this"),
    ({"RECON": "on"}, [f"{WEIGHT}=0"], "^RECON and loss.reconstruction.weight: set twice"),
    ({"EPOCHS": "3"}, ["epochs=2"], "^EPOCHS and epochs: set twice; keep one"),
    *(({"SEEDS": s}, [], f"^SEEDS={s}:? must be ") for s in ("0", "x", "1.5", "-1", ",", "5,5")),
    ({}, ["seed=2", "seed=3"], "^seed: type SEEDS instead"),
    ({}, ["epochs=2,2"], r"^epochs=2,2: epochs has the value 2 twice"),
    ({}, ["trainer.threads=1,2"], "^trainer.threads: type one value; where"),
    ({}, ["loss=margin,none"], r"^ablation\.yaml with loss=margin,none: arm capsnet: loss=none"),
    ({}, ["lr=0.1"], r"arm cnn: lr: no such key; did you mean optim\.optimizer\.lr\?"),
    ({"METRIC": "test/acuracy"}, [], r"table\.metric: .* is not measured; .*test/error"),
    ({"BASELINE": "capsnt"}, [], "^BASELINE=capsnt: no arm 'capsnt'; ablation.yaml has cnn"),
]


@pytest.mark.parametrize(("words", "overrides", "message"), REFUSED)
def test_what_cannot_be_meant_is_refused_by_its_word(
    words: dict[str, str], overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        expand.expand_sweep(choices.load_sweep("ablation", words, overrides))


def test_differences_may_be_to_another_arm_but_where_arms_stop_at_the_baselines_accuracy(
    ablation: Sweep,
) -> None:
    sweep = choices.apply_words(ablation, {"BASELINE": "capsnet"})
    assert sweep.baseline == "capsnet"
    assert {point.arm for point in expand.expand_sweep(sweep)} == {"cnn", "capsnet"}
    alone = choices.apply_words(ablation, {"BASELINE": "capsnet", "ARMS": "capsnet"})
    assert {point.arm for point in expand.expand_sweep(alone)} == {"capsnet"}
    with pytest.raises(ConfigError, match=r"em_viewpoint\.yaml has arms matched to cnn"):
        choices.load_sweep("em_viewpoint", {"BASELINE": "capsnet"})


@pytest.mark.parametrize(
    ("count", "seeds"), [("1", (100,)), ("2", (100, 101)), ("3", (100, 101, 102))]
)
def test_a_count_begins_with_the_seeds_of_the_file(count: str, seeds: tuple[int, ...]) -> None:
    """Otherwise one seed of a search of learning rates would be a seed of a table of results."""
    assert choices.load_sweep("routing_rates", {"SEEDS": count}).seeds == seeds


@pytest.mark.parametrize(
    ("words", "overrides", "described"),
    [
        ({}, [], ""),
        ({"EPOCHS": "1"}, ["trainer.threads=2"], "EPOCHS=1"),
        ({}, ["epochs=1", "places.storage=/x"], "EPOCHS=1"),
        ({"SEEDS": "3", "METRIC": "test/error", "STORAGE": "/x"}, [], ""),  # as the file has them
        ({"SEEDS": "2,1,0"}, [], ""),
        ({"SEEDS": "2,"}, [], "SEEDS=2,"),
        ({"SEEDS": "1,0", "ARMS": "cnn,capsnet", "BASELINE": "cnn"}, [], "SEEDS=2"),
        ({"ARMS": "cnn"}, [], "ARMS=cnn"),
        ({"RECON": "off"}, [], "RECON=0"),
        ({}, ["precision='32'"], "precision=32"),
        ({"SEEDS": "0,1", "ROUTING": " 1, 3"}, [], "ROUTING=1,3 SEEDS=2"),
        ({}, ["loss=margin,spread"], "loss=margin,spread"),
        ({}, ["model=capsnet"], "MODEL=capsnet"),
        ({"METRIC": "val/loss"}, [], "METRIC=val/loss"),
        (
            {"EXCLUDE": "arm=cnn a=1", "ZIP": "epochs,batch_size"},
            ["epochs=1,2", "batch_size=8,16"],
            "BATCH=8,16 EPOCHS=1,2 EXCLUDE=arm=cnn a=1 ZIP=epochs,batch_size",
        ),
    ],
)
def test_a_report_is_called_after_what_was_typed(
    ablation: Sweep, words: dict[str, str], overrides: list[str], described: str
) -> None:
    """Each choice has one form, whichever of its spellings was typed."""
    sweep = choices.apply_words(ablation, words, overrides)
    assert " ".join(sweep.words) == described
    assert sweep.report_name == "-".join(filter(None, ["ablation", *re.split("[ /]", described)]))


def test_the_name_of_a_report_is_short_safe_and_its_own(ablation: Sweep) -> None:
    typed = ("a/../b*c", "a/../b?c", "x" * 300, "x" * 301)
    names = {replace(ablation, words=(word,)).report_name for word in typed}
    assert len(names) == 4
    assert all(re.fullmatch(r"ablation-[A-Za-z0-9_.,=-]{2,90}", each) for each in names)


def test_typed_keys_may_need_one_another_in_any_order() -> None:
    typed = ["model.head=linear", "loss=cross_entropy", "routing=inverted_attention"]
    for overrides in (typed, typed[::-1]):
        found = places("ablation", {"RECON": "off"}, *overrides)
        assert found == ["cnn", *(f"capsnet inverted_attention {n} 0.0" for n in (1, 3))]
