"""A file put into conf/routing is a variant that a sweep can name, and add with an optional arm."""

from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.sweep import choices, expand
from capsweep.sweep.choices import Choices

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
PINNED = {"cnn": 1, "capsnet": 2}

Counts = Callable[..., dict[str, int]]


@pytest.fixture
def counts(conf_tree: Callable[[], Path], tmp_path: Path) -> Counts:
    """The places of each arm of the sweep above, by what is typed as ROUTING."""
    routing = conf_tree() / "routing"
    text = (routing / "dynamic.yaml").read_text()
    (routing / "new.yaml").write_text(text.replace("name: dynamic", "name: new"))
    path = tmp_path / "small.yaml"

    def counted(typed: str | None, key: str = "optional: true,") -> dict[str, int]:
        path.write_text(SWEEP.replace("NEW", key))
        points = expand.expand_sweep(choices.load_sweep(str(path), Choices(routing=typed)))
        arms = [point.arm for point in points]
        return {arm: arms.count(arm) for arm in dict.fromkeys(arms)}

    return counted


@pytest.mark.parametrize(
    ("routing", "expected"),
    [
        (None, STANDING),
        ("new", {**STANDING, "control": 1, "new": 2}),
        ("new,3", {**PINNED, "control": 1, "new": 1}),
        ("dynamic,new", {**STANDING, "control": 1, "new": 2}),
    ],
)
def test_naming_the_variant_of_an_optional_arm_adds_it_to_what_is_run_anyway(
    routing: str | None, expected: dict[str, int], counts: Counts
) -> None:
    assert counts(routing) == expected
    assert list(counts(routing)) == list(expected)  # in the order of the file


def test_naming_a_variant_whose_arm_is_not_optional_keeps_its_arms_alone(counts: Counts) -> None:
    assert counts("new", "") == {"cnn": 1, "control": 1, "new": 2}
    assert counts(None, "") == {**STANDING, "new": 2}
