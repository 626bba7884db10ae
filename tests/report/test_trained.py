"""A table says what was trained, and of what published numbers are that its rows are not."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest

from capsweep.config import compose
from capsweep.config.cell import Cell, flatten
from capsweep.report import render, trained
from capsweep.report.formatted_table import format_table
from capsweep.sweep import expand
from capsweep.sweep.spec import Sweep


def test_a_line_says_what_was_trained_and_where_it_differs(choose: Callable) -> None:
    chosen = choose("affnist", overrides=["dataset=affnist,affnist_like"], seeds="1")
    assert trained.describe_trained(chosen.sweep, chosen.points) == (
        "trained: data set affnist, affnist_like; network baseline_affnist (baseline), "
        "capsnet; epochs at most 100; batch size 128; seed 0; routing dynamic (capsnet); "
        "loss cross_entropy (baseline), margin (capsnet); stop_accuracy 0.9923 (baseline)."
    )


def describe_pair(sweep: Sweep, first: Cell, second: Cell) -> str:
    """The line of two arms of one cell each, `one` and `two`."""
    points = [expand.Point(arm, arm, 0, cell) for arm, cell in (("one", first), ("two", second))]
    return trained.describe_trained(replace(sweep, rows=("arm",), columns=()), points)


def change_leaf(section: dict, path: str) -> dict:
    """A copy that has another value at a dotted key."""
    name, _, rest = path.partition(".")
    new = change_leaf(section[name], rest) if rest else f"not {section[name]}"
    return {**section, name: new}


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=digits"],
        ["experiment=em/digits"],
        ["experiment=overlap", "recipe=paper", "model.head=linear", "loss=cross_entropy"],
    ],
)
def test_each_key_of_science_in_which_two_arms_differ_is_named(ablation, overrides: list) -> None:
    cell = compose.cell(overrides)
    same = describe_pair(ablation.sweep, cell, cell)
    assert "one" not in same
    for key in set(flatten(cell.science)) - {"seed"}:
        other = replace(cell, config=change_leaf(dict(cell.config), key))
        line = describe_pair(ablation.sweep, cell, other)
        name = key.removesuffix(".name")
        words = trained.FACTS.get(name) or trained.NAMES.get(name, name)
        facts = line.removeprefix("trained: ").strip(".").split("; ")
        assert any(fact.startswith(f"{words} ") and "(two)" in fact for fact in facts), key


@pytest.mark.parametrize("name", ["em_ablation", "recipe", "sign"])
def test_arms_of_which_a_line_says_the_same_are_of_one_science(choose: Callable, name: str) -> None:
    chosen = choose(name, seeds="1")
    for first, second in combinations([point.cell for point in chosen.points], 2):
        line = describe_pair(chosen.sweep, first, second)
        assert ("one" in line) == (first.signature != second.signature)


def test_every_form_warns_of_cut_data_and_says_what_was_trained(choose: Callable) -> None:
    chosen = choose("ablation", routing="3", overrides=["limit_batches=2"])
    built = chosen.build()
    formatted = format_table(built)
    warning = "NO RESULT: TRAINED AND TESTED ON 2 BATCHES AN EPOCH (limit_batches=2)."
    assert formatted.warnings == [warning]
    markdown = render.render_markdown(built, formatted)
    latex = render.render_latex(built, formatted)
    assert markdown.index(f"**{warning}**") < markdown.index("| arm |")
    assert r"\caption{\textbf{NO RESULT: TRAINED AND TESTED ON 2 BATCHES" in latex
    assert f'"{warning}"' in render.render_json(built, formatted)
    assert ',cnn_small,7,32,2,"[0, 1, 2]",' in render.render_csv(built)
    for text in (markdown, latex.replace(r"\_", "_")):
        assert "network cnn_small (cnn), capsnet_small (capsnet); epochs 7;" in text


@pytest.mark.parametrize(
    ("sweep", "options", "texts"),
    [
        (
            "table1_mnist",
            {"overrides": ["limit_batches=9"], "arms": "cnn_matched"},
            ["≠ all of mnist (epochs unknown)"],
        ),
        (
            "full_mnist",
            {"overrides": ["epochs=640", "model.primary.types=8"]},
            ["–", "≠ unchanged capsnet"],
        ),
        (
            "full_mnist",
            {"overrides": ["loss=spread"]},
            ["–", "≠ loss margin, 640 epochs, loss.reconstruction.weight 0.0005"],
        ),
        ("cifar10_ensemble", {}, ["10.60 % ≠ ensemble of 7"]),
        (
            "em_ablation",
            {"model": "matrix_capsnet_big", "arms": "no_coordinates"},
            [
                "2.20 % ≠ matrix_capsnet (epochs unknown); 1.80 % (epochs unknown)",
                "2.60 % (epochs unknown)",
            ],
        ),
        (
            "table1_mnist",
            {"overrides": ["dataset.validation=50000"], "arms": "cnn_matched"},
            ["0.39 % ≠ the file's dataset.validation (epochs unknown)"],
        ),
        (
            "full_mnist",
            {"overrides": ["dataset=digits,mnist"]},
            ["–", "0.25 % ≠ 640 epochs (mnist)"],
        ),
    ],
)
def test_a_published_number_is_marked_by_what_its_row_is_not(
    choose: Callable, sweep: str, options: dict, texts: list[str]
) -> None:
    chosen = choose(sweep, **{"seeds": "1"} | options)
    rows = chosen.build().rows
    written = [trained.format_published(chosen.sweep, row.published) for row in rows]
    for text, expected in zip(written, texts, strict=False):
        assert text.endswith(expected)
        assert ("≠" in text) == ("≠" in expected)


def test_the_number_of_an_ensemble_is_that_of_as_many_members(choose: Callable) -> None:
    chosen = choose("cifar10_ensemble")
    (number,) = trained.find_published(chosen.sweep, chosen.points[:1], members=7)
    assert not number.differs


@pytest.mark.parametrize(("words", "text"), [("3,uniform", "3 (dynamic)"), ("3,em", "3")])
def test_the_iterations_of_each_routing_are_named(choose: Callable, words: str, text: str) -> None:
    chosen = choose("ablation", routing=words, recon="0")
    points = [point for point in chosen.points if point.arm == "capsnet"]
    line = trained.describe_trained(replace(chosen.sweep, rows=("routing",)), points)
    assert line.endswith(f"; routing.num_iters {text}.")
