"""The table: every number with n, mean and std; gaps are shown as what they are."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from capsweep.config import code_identity, compose
from capsweep.errors import ConfigError, UserError
from capsweep.report import render, table
from capsweep.report.formatted_table import format_table
from capsweep.runtime import terminal

ROW = "capsnet · 3 · 0"


def test_a_full_table_has_mean_standard_deviation_and_n(ablation) -> None:
    ablation.fill(0.01, 0.02, 0.03, *[0.005] * 6)
    best, full = "**0.50 ± 0.00 % (3)**", ", mnist, 640 epochs"
    difference = "-1.50 [-3.98, 0.98] p 0.24 (3)"  # t = -2.60 on 2 degrees; p 0.122, twice by Holm
    assert ablation.rows() == [
        [
            "cnn",
            "–",
            "0",
            "2.00 ± 1.00 % (3) [0.00, 4.48]",
            "–",
            "*0.39 % ≠ baseline_mnist, mnist (epochs unknown)*",
        ],
        ["capsnet", "3", "0", best, difference, f"*0.35 % ≠ capsnet{full}*"],
        ["capsnet", "3", "0.0005", best, difference, f"*0.25 % ≠ capsnet{full}*"],
    ]


def test_a_difference_that_is_equal_for_all_seeds_says_so_and_what_signs_alone_can_show(
    ablation,
) -> None:
    ablation.fill(0.02, 0.03, 0.04, 0.01, 0.02, 0.03, 0.02, 0.03, 0.05)
    fields = [row[4] for row in ablation.rows()]
    assert fields == ["–", "-1.00 (3, all equal)", "+0.33 [-1.10, 1.77] p 0.42 (3)"]
    text = ablation.render()
    assert "all equal: the difference is the same for each of these seeds" in text
    assert "neither an interval nor a t test; its signs alone give p = 0.25 for n = 3." in text
    assert "p is of the paired t test of one row, so that nothing is adjusted." in text
    ablation.fill(0.02, 0.03, 0.04, 0.02, 0.03, 0.04)
    assert "neither an interval nor a t test.\n" in ablation.render()  # rows that never differ
    ablation.fill(0.02, 0.03, 0.04, 0.01, 0.02, 0.033)
    assert "all equal:" not in ablation.render()


def test_gaps_say_how_many_seeds_there_are_and_why_others_failed(ablation) -> None:
    ablation.fill(0.01, 0.01)
    (ablation.folder_of(2) / "stopped.json").write_text('{"epochs": 1}')  # by a search
    signature = ablation.points[3].cell.signature
    ablation.ledger.note_failure(signature, "OutOfMemoryError: 3 GiB too much")
    gaps = ["2/3 seeds", "0/3 seeds; failed: out of memory", "0/3 seeds"]
    assert [row[3] for row in ablation.rows()] == gaps
    assert "failed: capsnet · 3 · 0: OutOfMemoryError: 3 GiB too much" in ablation.render()


MADE = {
    "hardware": {"processor": "A", "capability": "AVX2", "gpus": []},
    "versions": {"torch": "2.13.0"},
    "code": {"numerics": "n1"},
    "fingerprint": "f1",
}
OTHER = {
    "hardware": ({"gpus": ["B"]}, "A (AVX2)", "B", "hardware differs"),
    "versions": ({"torch": "2.12.0"}, "2.13.0", "2.12.0", "torch differs"),
    "code": ({"numerics": "n2"}, "version 1", "version 2", "code differs"),
}


def write_made(cell: Path, made: Mapping[str, Any]) -> None:
    """What a cell was made by."""
    (cell / "provenance.json").write_text(json.dumps(made))


@pytest.mark.parametrize("key", OTHER)
def test_a_note_names_the_cells_that_other_things_made_than_their_neighbours(
    key: str, ablation
) -> None:
    ablation.fill(*[0.01] * 9)
    for number in range(9):
        of_cnn = {"code": {"numerics": "n0"}} if number < 3 else {}  # other networks run other code
        write_made(ablation.folder_of(number), MADE | of_cnn)
    assert " differs: " not in ablation.render()
    theirs, ours, name, kind = OTHER[key]
    write_made(ablation.folder_of(4), MADE | {key: theirs})
    text = ablation.render()
    assert text.count(" differs: ") == 1
    assert f"\n{kind}: {name} in seed 1 of {ROW}; else {ours}.\n" in text


def test_a_note_on_a_seed_is_of_every_row_that_has_the_seed(ablation) -> None:
    ablation.fill(*[0.01] * 8)  # the last row lacks seed 2
    for number in range(8):
        versions = {"torch": "2.12.0" if number % 3 == 2 else "2.13.0"}
        write_made(ablation.folder_of(number), MADE | {"versions": versions})
    assert "differs: 2.12.0 in seed 2 of every row; else 2.13.0.\n" in ablation.render()


def test_a_note_on_all_rows_of_an_arm_names_the_arm_alone(ablation) -> None:
    ablation.fill(*[0.01] * 9)
    for number in range(9):
        versions = {"torch": "2.12.0" if number < 3 or number % 3 == 2 else "2.13.0"}
        write_made(ablation.folder_of(number), MADE | {"versions": versions})
    text = "differs: 2.13.0 in seeds 0, 1 of capsnet; else 2.12.0.\n"
    assert text in ablation.render()
    write_made(ablation.folder_of(4), MADE | {"versions": {"torch": "2.12.0"}})
    assert "in seed 0 of capsnet · 3 · 0, and seeds 0, 1 of capsnet · 3 · " in ablation.render()


def test_settings_that_the_rows_do_not_tell_apart_are_not_averaged(ablation) -> None:
    other = replace(ablation.points[3], title="x", cell=compose.cell(["seed=0", "batch_size=7"]))
    points = [*ablation.points, other]
    with pytest.raises(
        ConfigError, match=r"share one field of the table; add the key .* table\.rows"
    ):
        table.build_table(ablation.sweep, points, ablation.ledger)


def test_a_table_says_what_its_data_is_not(choose: Callable) -> None:
    said = "cifar10_approximate: not byte-exact CIFAR-10; 77 images of train and 21 of test are"
    chosen = choose("cifar10_ensemble", overrides=["dataset=cifar10_approximate"], seeds="1")
    assert chosen.render().count(said) == 1
    assert said not in choose("cifar10_ensemble", seeds="1").render()


TRAIN, TEST, CHANGED = "1a" * 32, "2b" * 32, "3c" * 32


def test_cells_that_used_other_data_are_never_in_one_table(ablation) -> None:
    for number in range(4):
        data = {"train": TRAIN, "test": TEST if number else CHANGED}
        ablation.finish(number, {"test/error": 0.25}, data=data)
    first, second, *_ = (point.cell.signature for point in ablation.points)
    said = rf"{CHANGED} \({first}\), {TEST} \({second}, .*run them again$"
    with pytest.raises(UserError, match=rf"^dataset=digits: the test data .*{said}"):
        ablation.build()


@pytest.mark.parametrize(
    ("metric", "best"), [("test/segmentation", "80.00 %"), ("test/loss", "0.2")]
)
def test_another_metric_has_its_best_row_its_folder_and_no_published_numbers(
    choose: Callable, metric: str, best: str
) -> None:
    chosen = choose("overlap", seeds="1", metric=metric)
    for number, value in enumerate((0.2, 0.8, 0.5)):
        chosen.finish(number, {metric: value})
    assert f"**{best} (1)**" in chosen.render()
    assert chosen.sweep.report_name == f"overlap-METRIC={metric.replace('/', '-')}-SEEDS=1"
    assert not chosen.sweep.published.values
    assert choose("overlap", seeds="1").sweep.published.values


def test_the_table_says_which_rows_are_stale(ablation) -> None:
    ablation.fill(0.1, 0.2, 0.3, 0.1)
    assert "stale: all that are finished: 4 cells made by other" in ablation.render()
    for number in range(3):
        config = ablation.points[number].cell.config
        code = {"numerics": code_identity.hash_numerics(config)}
        ablation.finish(number, {"test/error": 0.1}, code=code)
    assert "stale: capsnet · 3 · 0: 1 cell made by other code" in ablation.render()


def test_a_row_without_the_metric_is_a_gap_that_is_said(choose: Callable) -> None:
    chosen = choose("overlap", seeds="2", routing="3", metric="test/segmentation")
    for number, point in enumerate(chosen.points):  # the CNN has no decoder
        drawn = {"test/segmentation": 0.8} if point.arm == "capsnet" else {}
        chosen.finish(number, {"test/error": 0.1, **drawn})
    text = chosen.render()
    assert "| cnn | – | – | – |\n" in text
    assert "| capsnet | 3 | 80.00 ± 0.00 % (2) | – |\n" in text
    assert "–: test/segmentation is not measured there." in text


def test_cells_that_never_predict_a_class_are_marked_and_cells_without_counts_are_not(
    ablation,
) -> None:
    others = [4] * 7
    for number in range(9):  # three cells of an earlier version, then two that name no 2
        predicted = [5, 3, 0 if number in (3, 4) else 2, *others]
        counts = {"examples": [4, 4, 2, *others], "missed": [0] * 10, "predicted": predicted}
        known = {} if number < 3 else {"classes": counts}
        ablation.finish(number, {"test/error": 0.25}, **known)
    text, mean = ablation.render(), "25.00 ± 0.00 % (3)"
    assert [row[3] for row in ablation.rows()] == [mean, f"{mean}†", mean]
    assert "†: 2 of 6 cells predict some class for no test image: class 2 (2 cells).\n" in text


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_terminal_breaks_no_number_of_ours_at_any_width(choose: Callable, width: int) -> None:
    chosen = choose("ablation", routing="3", overrides=["dataset=digits,mnist"])
    chosen.fill(*[0.01 + 0.001 * number for number in range(18)])
    formatted = format_table(chosen.build())
    console = Console(file=StringIO(), width=width)
    terminal.print_table(console, render.render_terminal(formatted))
    words = set(console.file.getvalue().split())
    ours = [field.text for row in formatted.rows for field in row if field.kind != "published"]
    assert {word for text in ours for word in text.split()} <= words
