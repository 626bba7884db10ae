"""A table says what was trained, and of what published numbers are that its rows are not."""

from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from capsweep.errors import ConfigError
from capsweep.report import published, render, trained
from capsweep.report.formatted_table import format_table
from capsweep.sweep import expand


def describe(chosen) -> str:
    """The line of a chosen sweep."""
    return trained.describe_trained(chosen.sweep, chosen.points)


@pytest.mark.parametrize(
    ("sweep", "options", "line"),
    [
        (
            "ablation",
            {"routing": "em"},
            "trained: data set digits; network cnn_small (cnn), capsnet_small (capsnet), "
            "matrix_capsnet_tiny (control, em); epochs 12 (cnn, capsnet), 20 (control, em); "
            "batch size 32; seeds 0 to 2.",
        ),
        (  # an arm of two networks: what decides the epochs is the network
            "routing_shootout",
            {"seeds": "2"},
            "trained: data set digits; network cnn_small, capsnet_small, matrix_capsnet_tiny; "
            "epochs 12 (cnn_small, capsnet_small), 20 (matrix_capsnet_tiny); batch size 32; "
            "seeds 0, 1.",
        ),
        (
            "affnist",
            {"overrides": ["dataset=affnist,affnist_like"], "seeds": "1"},
            "trained: data set affnist, affnist_like; network baseline_affnist (baseline), capsnet "
            "(capsnet); epochs at most 100; batch size 128; seed 0.",
        ),
        (
            "precision",
            {"overrides": ["epochs=2,4", "batch_size=64,32"], "zips": ["epochs,batch_size"]},
            "trained: data set digits; network capsnet_small; epochs 2, 4; batch size 64, 32; "
            "seeds 0 to 2.",
        ),
    ],
)
def test_a_line_says_what_was_trained_and_where_it_differs(
    choose: Callable, sweep: str, options: dict, line: str
) -> None:
    assert describe(choose(sweep, **options)) == line


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
    assert r"\multicolumn{5}{@{}l}{trained here} & by others" in latex
    assert f'"{warning}"' in render.render_json(built, formatted)
    assert ",cnn_small,12,32,2,0; 1; 2," in render.render_csv(built, formatted)
    for text in (markdown, latex.replace(r"\_", "_")):
        assert "network cnn_small (cnn), capsnet_small (capsnet); epochs 12;" in text


def test_arms_of_cut_data_are_named(choose: Callable) -> None:
    cut = choose("ablation", routing="3", overrides=["limit_batches=1"]).points
    whole = choose("ablation", routing="3").points
    (warning,) = trained.warn_of_cuts([*whole[:3], *cut[3:]])
    assert warning.startswith("NO RESULT OF capsnet: TRAINED AND TESTED ON 1 BATCH AN EPOCH")
    assert trained.warn_of_cuts(whole) == []
    (warning,) = trained.warn_of_cuts([*whole, *cut])
    assert warning.startswith("NO RESULT OF limit_batches=1: TRAINED AND TESTED ON 1 BATCH")


def test_cells_of_one_field_that_differ_in_more_than_the_seed_are_refused(ablation) -> None:
    first, *others = ablation.points
    other = first.compose_with("epochs", 3)
    changed = [expand.Point(first.arm, first.title, 0, other), *others]
    with pytest.raises(ConfigError, match="fall into one field"):
        expand.check_distinct_fields(ablation.sweep, changed)


@pytest.mark.parametrize(
    ("sweep", "options", "texts"),
    [
        (
            "table1_mnist",
            {},
            ["0.39 % (epochs unknown)", "–", "0.34 %", "0.29 %", "0.35 %", "0.25 %"],
        ),
        (
            "table1_mnist",
            {"overrides": ["epochs=700"], "arms": "cnn_matched"},
            ["0.39 % (epochs unknown)", "–"],
        ),
        (
            "table1_mnist",
            {"overrides": ["epochs=20"], "arms": "cnn_matched"},
            ["≠ the file's epochs (epochs unknown)"],
        ),
        (
            "table1_mnist",
            {"overrides": ["dataset=digits"], "arms": "cnn_matched"},
            ["≠ mnist (epochs unknown)"],
        ),
        (
            "table1_mnist",
            {"overrides": ["limit_batches=9"], "arms": "cnn_matched"},
            ["≠ all of mnist (epochs unknown)"],
        ),
        ("full_mnist", {"overrides": ["epochs=640"]}, ["–", "0.25 %"]),
        (
            "full_mnist",
            {"overrides": ["epochs=640", "model.primary.types=8"]},
            ["–", "≠ unchanged capsnet"],
        ),
        (
            "full_mnist",
            {"overrides": ["routing=em", "epochs=640"]},
            ["–", "0.25 % ≠ routing dynamic"],
        ),
        (
            "full_mnist",
            {"overrides": ["loss=spread"]},
            ["–", "≠ loss margin, 640 epochs, loss.reconstruction.weight 0.0005"],
        ),
        ("smallnorb", {}, ["–", "2.70 % (epochs unknown)"]),
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
            "routing_shootout",
            {"arms": "dynamic"},
            ["≠ mnist, baseline_mnist (epochs unknown)", "0.35 % ≠ mnist, capsnet, 640 epochs"],
        ),
        (
            "routing_shootout",
            {"overrides": ["loss=margin,spread"], "arms": "dynamic"},
            [
                "≠ mnist, baseline_mnist (epochs unknown)",
                "≠ mnist, capsnet, 640 epochs",
                "≠ mnist, capsnet, 640 epochs, the file's loss",
            ],
        ),
        (
            "em_ablation",
            {"overrides": ["routing.num_iters=1"]},
            ["≠ matrix_capsnet_big, routing.num_iters 3 (epochs unknown)"],
        ),
        (
            "table1_mnist",
            {"overrides": ["dataset.validation=50000"], "arms": "cnn_matched"},
            ["0.39 % ≠ the file's dataset.validation (epochs unknown)"],
        ),
        (
            "smallnorb",
            {"overrides": ["epochs=1"]},
            ["–", "2.70 % ≠ the file's epochs (epochs unknown)"],
        ),
        ("smallnorb", {"overrides": ["epochs=9999"]}, ["–", "2.70 % (epochs unknown)"]),
        (
            "full_mnist",
            {"overrides": ["loss.reconstruction.weight=0", "epochs=640"]},
            ["–", "≠ loss.reconstruction.weight 0.0005"],
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
    written = [published.format_published(chosen.sweep, row.published) for row in rows]
    for text, expected in zip(written, texts, strict=False):
        assert text.endswith(expected)
        assert ("≠" in text) == ("≠" in expected)


def test_the_number_of_an_ensemble_is_that_of_as_many_members(choose: Callable) -> None:
    chosen = choose("cifar10_ensemble")
    (number,) = published.find_published(chosen.sweep, chosen.points[:1], members=7)
    assert not number.differs


@pytest.mark.parametrize("width", [60, 200])
def test_a_terminal_has_a_rule_before_every_line_of_published_numbers(ablation, width: int) -> None:
    console = Console(file=StringIO(), width=width)
    console.print(render.render_terminal(format_table(ablation.build()), console))
    lines = [
        line for line in console.file.getvalue().splitlines() if "seeds" in line or "│" in line
    ]
    parts = [line.partition("│ ")[2].strip() for line in lines if "│" in line]
    assert parts[0] == "published"
    last = "0.25 % ≠ capsnet, mnist, 640 epochs"
    assert " ".join(parts).endswith(last)
    assert "mnist" not in "".join(line.partition("│")[0] for line in lines)
