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
    points = expand.expand_sweep(choices.load_sweep(str(path), Choices(routing=typed)))
    arms = [point.arm for point in points]
    assert {arm: arms.count(arm) for arm in arms} == expected
    assert list(dict.fromkeys(arms)) == list(expected)
