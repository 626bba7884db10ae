"""Where seeds are added: the level holds for the whole table, however many columns it has."""

import io
from pathlib import Path

import pytest
from reported_cells import finish
from rich.console import Console

from capsweep.config import places
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.statistics.seeds import paired_difference
from capsweep.sweep import choices, drive, expand, more_seeds, spec
from capsweep.sweep.expand import Point
from capsweep.sweep.more_seeds import Added

HIGHER = [0.0100, 0.0108, 0.0118, 0.0096, 0.0110, 0.0104]
LOWER = [0.0090, 0.0095, 0.0102, 0.0093, 0.0094, 0.0099]


def fill_ledger(ledger: Path, overrides: list[str]) -> tuple[spec.Sweep, list[Point]]:
    """CNN and CapsNet on six seeds each, the CNN higher in every column by the same differences."""
    typed = {"ROUTING": "1", "RECON": "off", "SEEDS": "6"}
    sweep = choices.load_sweep("ablation", typed, overrides)
    points = expand.expand_sweep(sweep)
    for point in points:
        finish(ledger, point, (HIGHER if point.arm == "cnn" else LOWER)[point.seed])
    return sweep, points


def p_value() -> float:
    """Of the pair in each column."""
    found = paired_difference(dict(enumerate(HIGHER)), dict(enumerate(LOWER)))
    assert found is not None
    assert found.t_test is not None
    return found.t_test


@pytest.mark.parametrize("last", ["x", "3", "9999999999"])
def test_a_bad_number_of_seeds_to_add_is_refused(last: str) -> None:
    with pytest.raises(UserError, match=rf"^MORE_SEEDS={last}: must be a number above the sweep"):
        more_seeds.plan_looks(spec.load("ablation"), last)


@pytest.mark.parametrize("content", ["", "[]", '{"looks": [3]}'])
def test_a_damaged_memory_is_named_with_its_cure(content: str, tmp_path: Path) -> None:
    sweep = spec.load("ablation")
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "ablation.seeds.json").write_text(content)
    with pytest.raises(UserError, match=r"ablation\.seeds\.json is damaged .*; put a copy back"):
        more_seeds.load(Places(tmp_path, "", "", str(tmp_path)), sweep)


@pytest.mark.parametrize(("columns", "overrides"), [(1, []), (2, ["dataset=digits,mnist"])])
def test_the_level_is_divided_over_the_columns(
    columns: int, overrides: list[str], tmp_path: Path
) -> None:
    sweep, points = fill_ledger(tmp_path, overrides)
    clear = int(0.05 / p_value() / columns)  # most looks at which p is below its share
    ledger = Ledger(tmp_path)
    assert more_seeds.find_undecided(sweep, points, ledger, clear) == set()
    everything = {more_seeds.hash_place(point) for point in points}
    assert more_seeds.find_undecided(sweep, points, ledger, clear + 1) == everything
    assert len(everything) == 2 * columns


def test_a_look_after_which_all_is_decided_is_remembered(tmp_path: Path) -> None:
    """Or another plan of looks could be tried on the same cells, at a level of its own."""
    sweep, points = fill_ledger(tmp_path / "ledger", [f"places.storage={tmp_path}", "logger=csv"])
    console = Console(file=io.StringIO())
    ended = drive.add_seeds(sweep, points, drive.RunOptions("local"), "8", console)
    assert ended.status == drive.FINISHED
    node = places.resolve(points[0].cell.config["places"])
    assert more_seeds.load(node, sweep) == Added((6, 8), {})
    with pytest.raises(UserError, match="an earlier command tested this sweep at"):
        drive.add_seeds(sweep, points, drive.RunOptions("local"), "12", console)
