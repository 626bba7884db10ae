"""Every file of sweeps/ is a question that can be planned on a machine without any data."""

import re
from pathlib import Path

import pytest

from capsweep.config import package_files
from capsweep.config.cell import flatten
from capsweep.ledger.ledger import Ledger
from capsweep.report import render, table
from capsweep.sweep import choices, expand, plan, spec

FILES = sorted(package_files.find_folder("sweeps").glob("*.yaml"))
every_sweep = pytest.mark.parametrize("name", [path.stem for path in FILES])


@every_sweep
def test_a_sweep_is_planned_and_its_table_drawn_without_data(name: str, tmp_path: Path) -> None:
    sweep = spec.load(name)
    points = expand.expand_sweep(sweep)
    ledger = Ledger(str(tmp_path))
    planned = plan.make_plan(points, ledger)
    assert all(cell.size.parameters > 5_000 for cell in planned.cells)
    drawn = render.render_markdown(table.build_table(sweep, points, ledger))
    for arm in sweep.arms:
        assert "arm" not in sweep.rows or arm.name in drawn
    planned_models = {point.coordinate("model") for point in points}
    for published in sweep.published.values:
        stands_here = published.get("model", points[0].coordinate("model")) in planned_models
        assert not stands_here or f"{100 * published['value']:.2f} %" in drawn


OF_NETWORKS = {
    "em_iterations": ({"2.20"}, {"9.70", "2.20", "1.80", "3.90"}),
    "em_ablation": ({"2.20"}, {"1.80", "2.60", "3.20", "5.80", "4.50", "9.70", "2.90"}),
    "em_mnist": (set(), {"0.44"}),
}


@pytest.mark.parametrize(("name", "numbers"), OF_NETWORKS.items(), ids=OF_NETWORKS)
def test_numbers_of_the_larger_network_stand_in_its_rows_alone(
    name: str, numbers: tuple[set[str], set[str]], tmp_path: Path
) -> None:
    small = spec.load(name)
    larger = choices.apply_words(small, {"MODEL": "matrix_capsnet_big"})
    for sweep, published in zip((small, larger), numbers, strict=True):
        rows = table.build_table(sweep, expand.expand_sweep(sweep), Ledger(str(tmp_path))).rows
        beside = {
            f"{100 * number.value:.2f}"
            for row in rows
            if "cnn" not in row.coordinates
            for number in row.published
            if not number.differs
        }
        assert beside == published


@every_sweep
def test_its_first_lines_and_the_index_of_questions_say_how_it_is_run(name: str) -> None:
    folder = package_files.find_folder("sweeps")
    command, expected, *_ = (folder / f"{name}.yaml").read_text().splitlines()
    assert re.match(rf"# command:  make sweep( SWEEP={name}|  )", command), command
    assert expected.startswith("# expected: ")
    assert f"`{name}.yaml`" in (folder / "README.md").read_text()


def test_each_arm_of_the_recipe_sweep_differs_from_the_authors_in_one_key() -> None:
    points = expand.expand_sweep(spec.load("recipe"))
    science = {point.arm: flatten(point.cell.science) for point in points if point.seed == 0}
    authors = science["authors"]
    changed = {
        arm: {key for key in authors.keys() | other.keys() if authors.get(key) != other.get(key)}
        for arm, other in science.items()
    }
    alone = [keys for arm, keys in changed.items() if len(keys) == 1]
    assert len(alone) == 5
    # The floor of the rate is met after training has ended: an arm of it could not differ.
    assert changed["paper"] == set().union(*alone) | {"optim.schedule.floor"}
    assert changed["paper_reconstructing"] == changed["paper"] | {"loss.reconstruction.weight"}
