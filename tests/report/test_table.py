"""The table: every number with n, mean and std; gaps are shown as what they are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import formatted_table as lines
from capsweep.report import render, table
from capsweep.sweep import choices, expand, spec
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

Filled = Callable[[Point, float], None]


def rows_of(text: str) -> list[list[str]]:
    """Fields of the body of a Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def test_a_full_table_has_mean_standard_deviation_and_n(
    ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path
) -> None:
    sweep, points = ablation
    for point, error in zip(points, [0.01, 0.02, 0.03, *[0.005] * 6], strict=True):
        fill(point, error)
    rows = rows_of(render.render_markdown(table.build_table(sweep, points, Ledger(tmp_path))))
    best = "**0.50 ± 0.00 % (3)**"
    difference = "-1.50 [-3.98, 0.98] p 0.24 (3)"  # t = -2.60 on 2 degrees; p 0.122, twice by Holm
    assert rows == [
        ["cnn", "–", "0", "2.00 ± 1.00 % (3) [-0.48, 4.48]", "–", "0.39 % (mnist)"],
        ["capsnet", "3", "0", best, difference, "0.35 % (mnist)"],
        ["capsnet", "3", "0.0005", best, difference, "0.25 % (mnist)"],
    ]


def test_a_partial_field_says_how_many_seeds_and_no_number(
    ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path
) -> None:
    sweep, points = ablation
    for point in points[:2]:
        fill(point, 0.01)
    rows = rows_of(render.render_markdown(table.build_table(sweep, points, Ledger(tmp_path))))
    assert [row[3] for row in rows] == ["2/3 seeds", "0/3 seeds", "0/3 seeds"]


def test_a_failure_is_shown_with_its_cause(
    ablation: tuple[Sweep, list[Point]], tmp_path: Path
) -> None:
    sweep, points = ablation
    Ledger(tmp_path).note_failure(points[0].cell.signature, "OutOfMemoryError: 3 GiB too much")
    text = render.render_markdown(table.build_table(sweep, points, Ledger(tmp_path)))
    assert "| 0/3 seeds; failed: out of memory |" in text
    assert "failed: cnn · – · 0: OutOfMemoryError: 3 GiB too much" in text


def test_several_data_sets_are_columns_and_a_single_seed_has_no_spread(
    fill: Filled, tmp_path: Path
) -> None:
    chosen = choices.Choices(routing="3", seeds="1", overrides=["dataset=digits,mnist"])
    sweep = choices.load_sweep("ablation", chosen)
    points = expand.expand_sweep(sweep)
    for point in points:
        fill(point, 0.01 if point.coordinate("dataset") == "mnist" else 0.02)
    answer = table.build_table(sweep, points, Ledger(tmp_path))
    assert answer.columns == (("digits",), ("mnist",))
    assert rows_of(render.render_markdown(answer))[0][3:5] == ["2.00 % (1)", "1.00 % (1)"]


def test_a_metric_that_is_not_measured_is_named(
    ablation: tuple[Sweep, list[Point]], tmp_path: Path
) -> None:
    sweep, points = ablation
    path = Path(tmp_path) / folder_of(points[0].cell.signature)
    path.mkdir(parents=True)
    (path / "result.json").write_text('{"metrics": {"val/error": 0.5}}')
    with pytest.raises(ConfigError, match=r"table\.metric: test/error is not measured"):
        table.build_table(sweep, points, Ledger(tmp_path))


def test_three_seeds_cannot_show_a_difference_and_the_report_says_so(
    ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path
) -> None:
    sweep, points = ablation
    for point in points:
        fill(point, 0.02 if point.arm == "cnn" else 0.01)
    text = render.render_markdown(table.build_table(sweep, points, Ledger(tmp_path)))
    assert "n = 3 cannot show a difference" in text
    assert "flipping signs gives p >= 0.25" in text


def test_the_row_with_the_fewest_seeds_decides_what_the_report_warns_of(
    ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path
) -> None:
    sweep, _ = ablation
    wide = expand.expand_sweep(replace(sweep, seeds=tuple(range(6))))
    kept = [p for p in wide if p.seed < 3 or p.coordinate("loss.reconstruction.weight") == 0]
    for point in kept:
        fill(point, 0.01 + 0.001 * point.seed)
    text = render.render_markdown(table.build_table(sweep, kept, Ledger(tmp_path)))
    assert "n = 3 cannot show a difference" in text


def test_how_seeds_were_added_is_told(ablation: tuple[Sweep, list[Point]], tmp_path: Path) -> None:
    sweep, points = ablation
    told = "by looking. Intervals and p values are not adjusted for having looked."
    assert told in render.render_markdown(
        table.build_table(sweep, points, Ledger(tmp_path), stopping="by looking")
    )
    assert "looked" not in render.render_markdown(
        table.build_table(sweep, points, Ledger(tmp_path))
    )


@pytest.mark.parametrize("error", [0.005, 0.1, 1 / 3])
def test_equal_values_have_no_interval(
    ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path, error: float
) -> None:
    sweep, points = ablation
    for point in points:
        fill(point, 2 * error if point.arm == "cnn" else error)
    rows = rows_of(render.render_markdown(table.build_table(sweep, points, Ledger(tmp_path))))
    assert [row[3].strip("*") for row in rows] == [
        f"{200 * error:.2f} ± 0.00 % (3)",
        *[f"{100 * error:.2f} ± 0.00 % (3)"] * 2,
    ]
    assert [row[4] for row in rows] == ["–", *[f"{-100 * error:.2f} (3)"] * 2]


def test_settings_that_the_rows_do_not_tell_apart_are_not_averaged(
    ablation: tuple[Sweep, list[Point]], tmp_path: Path
) -> None:
    sweep, points = ablation
    other = replace(points[3], cell=compose.cell(["seed=0", "batch_size=7"]))
    with pytest.raises(ConfigError, match=r"fall into one field; add the key .* table\.rows"):
        table.build_table(sweep, [*points, other], Ledger(tmp_path))


def test_a_cell_that_a_search_stopped_is_never_averaged(
    ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path
) -> None:
    sweep, points = ablation
    for point in points[:2]:
        fill(point, 0.01)
    stopped = tmp_path / folder_of(points[2].cell.signature)
    stopped.mkdir(parents=True)
    (stopped / "stopped.json").write_text('{"epochs": 1}')
    rows = rows_of(render.render_markdown(table.build_table(sweep, points, Ledger(tmp_path))))
    assert rows[0][3] == "2/3 seeds"


@pytest.mark.parametrize(
    ("sweep", "dataset", "said"),
    [
        ("affnist", "affnist_like", "affnist_like: not affNIST; affine transformations of mnist"),
        (
            "cifar10_ensemble",
            "cifar10_approximate",
            "cifar10_approximate: not byte-exact CIFAR-10; 77",
        ),
    ],
)
def test_a_table_says_what_its_data_is_not(
    sweep: str, dataset: str, said: str, tmp_path: Path
) -> None:
    chosen = choices.apply_choices(
        spec.load(sweep), choices.Choices(overrides=[f"dataset={dataset}"], seeds="1")
    )
    text = render.render_markdown(
        table.build_table(chosen, expand.expand_sweep(chosen), Ledger(tmp_path))
    )
    assert text.count(said) == 1
    official = choices.load_sweep(sweep, choices.Choices(seeds="1"))
    text = render.render_markdown(
        table.build_table(official, expand.expand_sweep(official), Ledger(tmp_path))
    )
    assert said not in text


def test_what_is_typed_may_make_two_arms_alike_and_then_nothing_is_run() -> None:
    chosen = choices.Choices(overrides=["dataset=mnist"], seeds="1")
    sweep = choices.load_sweep("routing_iterations", chosen)
    with pytest.raises(ConfigError, match=r"cifar10 · .* fall into one field; add the key"):
        expand.check_distinct_fields(sweep, expand.expand_sweep(sweep))
    one = choices.load_sweep("routing_iterations", choices.Choices(seeds="1"))
    expand.check_distinct_fields(one, expand.expand_sweep(one))


def test_lists_are_coordinates_too(fill: Filled, tmp_path: Path) -> None:
    betas = "optim.optimizer.betas"
    chosen = choices.Choices(
        arms="cnn",
        seeds="1",
        overrides=[f"{betas}=[0.9,0.99],[0.5,0.9],[0.0,0.9]"],
        excludes=[f"{betas}=[0.0,0.9]"],
    )
    sweep = choices.load_sweep("ablation", chosen)
    points = expand.expand_sweep(sweep)
    for point, error in zip(points, (0.01, 0.02), strict=True):
        fill(point, error)
    rows = rows_of(render.render_markdown(table.build_table(sweep, points, Ledger(tmp_path))))
    assert [row[3:5] for row in rows] == [
        ["[0.9, 0.99]", "**1.00 % (1)**"],
        ["[0.5, 0.9]", "2.00 % (1)"],
    ]


def test_data_that_are_not_the_official_ones_have_a_footnote(fill: Filled, tmp_path: Path) -> None:
    wanted = choices.Choices(overrides=("dataset=digits,cifar10_approximate",))
    sweep = choices.load_sweep("ablation", wanted)
    answer = table.build_table(sweep, expand.expand_sweep(sweep), Ledger(tmp_path))
    notes = [note for note in lines.table_notes(answer) if "JPEG" in note]
    assert notes == [
        "cifar10_approximate: not byte-exact CIFAR-10; 77 images of train and 21 of test are "
        "decoded from JPEG."
    ]
    assert notes[0] in render.render_markdown(answer)


@pytest.mark.parametrize("source", ["mnist", "digits"])
def test_what_is_like_affnist_says_whose_digits_it_has(source: str, tmp_path: Path) -> None:
    chosen = ("dataset=affnist_like", f"dataset.source={source}", "dataset.validation=180")
    wanted = choices.Choices(overrides=chosen)
    sweep = choices.load_sweep("affnist", wanted)
    answer = table.build_table(sweep, expand.expand_sweep(sweep), Ledger(tmp_path))
    said = f"not affNIST; affine transformations of {source}'s test digits"
    assert any(said in note for note in lines.table_notes(answer))


def test_a_footnote_is_no_part_of_a_signature() -> None:
    said = compose.cell(["dataset=cifar10_approximate"])
    silent = compose.cell(["dataset=cifar10_approximate", "dataset.footnote=nothing to say"])
    assert said.signature == silent.signature
