"""A file put into conf/routing or conf/loss is a choice that any sweep can name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ("", ["dynamic 3 0", "dynamic 3 0.0005", "new 3 0", "new 3 0.0005"]),
        ("num_iters: 3", ["dynamic 3 0", "dynamic 3 0.0005", "new 0", "new 0.0005"]),
    ],
)
def test_a_file_put_into_conf_routing_is_named_by_routing(
    removed: str, expected: list[str], conf_tree: Callable[[], Path]
) -> None:
    """Axes that the routing does not have are left out for it."""
    routing = conf_tree() / "routing"
    text = (routing / "dynamic.yaml").read_text().replace("name: dynamic", "name: new")
    (routing / "new.yaml").write_text(text.replace(removed, "") if removed else text)
    sweep = choices.load_sweep("ablation", {"ROUTING": "3,new", "SEEDS": "1"})
    points = expand.expand_sweep(sweep)
    expand.check_distinct_fields(sweep, points)
    titles = [point.title.split(" · ")[1:] for point in points if point.arm == "capsnet"]
    assert [" ".join(p.partition("=")[2] for p in title) for title in titles] == expected


def test_a_file_put_into_conf_loss_is_compared_in_the_arms_that_route(
    conf_tree: Callable[[], Path],
) -> None:
    (conf_tree() / "loss" / "new.yaml").write_text(
        "name: new\nclassification: {_target_: capsweep.model.new_loss.new_loss}\n"
        "reconstruction: {weight: 0.0}\n"
    )
    sweep = choices.load_sweep("overlap", {"SEEDS": "1"}, ["loss=margin,new"])
    points = expand.expand_sweep(sweep)
    expected = {("cnn", "binary_cross_entropy"), ("capsnet", "margin"), ("capsnet", "new")}
    assert {(point.arm, point.coordinate("loss")) for point in points} == expected


def test_a_preset_sets_no_key_that_another_routing_does_not_have(
    conf_tree: Callable[[], Path],
) -> None:
    text = "_target_: capsweep.model.routing.new.New\n_partial_: true\nname: new\nimpl: reference\n"
    conf = conf_tree()
    (conf / "routing" / "new.yaml").write_text(text)
    typo = "# @package _global_\nrouting: {norm: types}\n"
    (conf / "experiment" / "typo.yaml").write_text(typo)
    preset = ["experiment=em/digits"]
    assert "num_iters" in compose.cell(preset).config["routing"]
    routing = compose.cell([*preset, "routing=new"]).config["routing"]
    assert routing.keys() == {"_target_", "_partial_", "name", "impl"}
    with pytest.raises(ConfigError, match=r"^conf/experiment/typo\.yaml: routing\.norm: no such"):
        compose.cell(["experiment=typo"])  # its own routing lacks it
