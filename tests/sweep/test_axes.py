"""Axes: Hydra's sweep grammar in files, coupled axes, exclusions, and the variables of make."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsweep.config.overrides import Interval, list_options
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand, spec
from capsweep.sweep.choices import Choices

TEXT = """\
question: Which axes?
base: [experiment=digits]
seeds: [0]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small]}
  capsnet:
    fixed: [model=capsnet_small]
    space: SPACE
table: {rows: [arm], columns: [dataset], metric: test/error}
"""

Titles = Callable[..., list[str]]


@pytest.fixture
def titles(tmp_path: Path) -> Titles:
    """Titles of the CapsNet's places, for a space, more lines of the file and choices."""

    def expanded(space: str, more: str = "", chosen: Choices | None = None) -> list[str]:
        path = tmp_path / "axes.yaml"
        path.write_text(TEXT.replace("SPACE", space) + more)
        sweep = choices.load_sweep(str(path), chosen or Choices())
        points = expand.expand_sweep(sweep)
        return [p.title.removeprefix("capsnet · ") for p in points if p.arm == "capsnet"]

    return expanded


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ('routing.num_iters: "1,3"', ["1", "3"]),
        ('routing.num_iters: "range(1,4)"', ["1", "2", "3"]),
        ('routing.num_iters: "choice(2,5)"', ["2", "5"]),
        ("routing.num_iters: [4]", ["4"]),
        ('dataset: "glob([digits, *_mnist])"', ["digits", "fashion_mnist"]),
        ('dataset: "glob([digits, *_mnist], exclude=fashion*)"', ["digits"]),
    ],
)
def test_hydras_sweep_grammar_works_in_files(
    titles: Titles, space: str, expected: list[str]
) -> None:
    assert [title.partition("=")[2] for title in titles(f"{{{space}}}")] == expected


def test_a_glob_works_on_the_command_line(titles: Titles) -> None:
    chosen = Choices(overrides=["dataset=glob([fashion*,mnist])"])
    assert titles("{}", chosen=chosen) == ["dataset=fashion_mnist", "dataset=mnist"]


def test_a_star_is_every_option_of_its_group(titles: Titles) -> None:
    recipes = [f"recipe={name}" for name in list_options("recipe")]
    assert titles('{recipe: "glob(*)"}') == recipes
    assert len(recipes) >= 2


def test_a_glob_that_matches_nothing_is_an_error(titles: Titles) -> None:
    with pytest.raises(ConfigError, match=r"dataset=glob\(x\*\): matches no option"):
        titles('{dataset: "glob(x*)"}')


def test_coupled_axes_move_together(titles: Titles) -> None:
    space = "{zip: {epochs: [1, 2], batch_size: [64, 32]}, routing.num_iters: [1, 3]}"
    assert titles(space) == [
        "routing.num_iters=1 · epochs=1 · batch_size=64",
        "routing.num_iters=1 · epochs=2 · batch_size=32",
        "routing.num_iters=3 · epochs=1 · batch_size=64",
        "routing.num_iters=3 · epochs=2 · batch_size=32",
    ]


def test_coupled_axes_of_unequal_length_are_named(titles: Titles) -> None:
    with pytest.raises(ConfigError, match=r"epochs has 2, batch_size has 1"):
        titles("{zip: {epochs: [1, 2], batch_size: [64]}}")


def test_axes_are_coupled_on_the_command_line(titles: Titles) -> None:
    chosen = Choices(overrides=["epochs=1,2", "batch_size=8,16"], zips=["epochs,batch_size"])
    assert titles("{}", chosen=chosen) == ["epochs=1 · batch_size=8", "epochs=2 · batch_size=16"]
    with pytest.raises(ConfigError, match="ZIP=epochs,seed: no arm of "):
        titles("{}", chosen=Choices(overrides=["epochs=1,2"], zips=["epochs,seed"]))


def test_of_axes_that_cannot_be_coupled_the_arm_is_named_once(titles: Titles) -> None:
    chosen = Choices(overrides=["batch_size=8,16,32"])
    space = "{zip: {epochs: [1, 2], batch_size: [64, 32]}}"
    with pytest.raises(
        ConfigError,
        match=r"^axes\.yaml: arm capsnet: zip: coupled axes need equally many values; epochs has 2",
    ):
        titles(space, chosen=chosen)


GRID = "{routing.num_iters: [1, 3], loss.reconstruction.weight: [0, 0.0005]}"


def test_excluded_places_are_left_out(titles: Titles) -> None:
    more = "exclude: [{routing.num_iters: 1, loss.reconstruction.weight: 0}]\n"
    assert len(titles(GRID)) == 4
    assert "routing.num_iters=1 · loss.reconstruction.weight=0" not in titles(GRID, more)
    assert len(titles(GRID, more)) == 3
    assert len(titles(GRID, chosen=Choices(excludes=["routing.num_iters=3"]))) == 2


def test_an_exclusion_that_matches_nothing_is_an_error_unless_its_axis_was_pinned(
    titles: Titles,
) -> None:
    more = "exclude: [{routing.num_iters: 3}]\n"
    with pytest.raises(ConfigError, match=r"exclude: no place has routing\.num_iters=3"):
        titles("{routing.num_iters: [1]}", more)
    assert titles(GRID, more, Choices(routing="1"))
    with pytest.raises(ConfigError, match=r"exclude: routing\.iters is no key of any cell"):
        titles(GRID, "exclude: [{routing.iters: 3}]\n")
    with pytest.raises(ConfigError, match="no place of arm capsnet is left"):
        titles(GRID, "exclude: [{arm: capsnet}]\n")


@pytest.mark.parametrize(
    ("recon", "weights"),
    [("off", ["0"]), ("on", ["0.0005"]), ("off,on", ["0", "0.0005"]), ("0.1", ["0.1"])],
)
def test_recon_sets_the_reconstruction_weight(
    titles: Titles, recon: str, weights: list[str]
) -> None:
    found = titles("{loss.reconstruction.weight: [0, 7]}", chosen=Choices(recon=recon))
    assert [title.partition("=")[2].removesuffix(".0") for title in found] == weights


@pytest.mark.parametrize("typed", [{}, {"overrides": ["epochs=2"]}, {"routing": "1"}])
@pytest.mark.parametrize(
    ("excluded", "message"),
    [
        ("routing.num_iters=9", r"exclude: no place has routing\.num_iters=9"),
        ("routing.num_itres=1", r"EXCLUDE: routing\.num_itres is no key of any cell"),
    ],
)
def test_a_typed_exclusion_leaves_something_out(
    titles: Titles, typed: dict[str, Any], excluded: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        titles(GRID, chosen=Choices(excludes=[excluded], **typed))


def test_an_axis_is_coupled_once(titles: Titles) -> None:
    axes = ["epochs=1,2", "batch_size=8,16", "optim.optimizer.lr=0.1,0.2"]
    zips = ["epochs,batch_size", "batch_size,optim.optimizer.lr"]
    with pytest.raises(ConfigError, match="batch_size is coupled twice"):
        titles("{}", chosen=Choices(overrides=axes, zips=zips))


def test_an_axis_has_a_value(titles: Titles) -> None:
    with pytest.raises(ConfigError, match=r"range\(3,1\): gives no value"):
        titles('{routing.num_iters: "range(3,1)"}')
    with pytest.raises(ConfigError, match=r"epochs=range\(3,1\): gives no value"):
        titles(GRID, chosen=Choices(overrides=["epochs=range(3,1)"]))


def test_recon_names_what_it_does_not_know(titles: Titles) -> None:
    with pytest.raises(ConfigError, match="RECON=maybe: 'maybe' is neither on, off nor a weight"):
        titles(GRID, chosen=Choices(recon="maybe"))
    with pytest.raises(ConfigError, match=r"RECON: no arm of axes\.yaml has the axis"):
        titles("{}", chosen=Choices(recon="on"))


def test_model_replaces_every_models_but_the_baselines() -> None:
    sweep = choices.load_sweep("ablation", Choices(model="capsnet", routing="3"))
    models = {(p.arm, p.coordinate("model")) for p in expand.expand_sweep(sweep)}
    assert models == {("cnn", "cnn_small"), ("capsnet", "capsnet")}


def test_arms_keeps_the_baseline() -> None:
    sweep = choices.load_sweep("ablation", Choices(arms="capsnet"))
    assert [arm.name for arm in sweep.arms] == ["cnn", "capsnet"]
    sweep = choices.load_sweep("ablation", Choices(arms="cnn"))
    assert {p.arm for p in expand.expand_sweep(sweep)} == {"cnn"}
    with pytest.raises(ConfigError, match="ARMS=cats: 'cats' is no arm; have cnn, capsnet"):
        choices.load_sweep("ablation", Choices(arms="cats"))


def test_a_new_axis_becomes_a_row_of_the_table() -> None:
    sweep = choices.load_sweep("ablation", Choices(overrides=["batch_size=16,64"]))
    assert sweep.rows[-1] == "batch_size"


def test_intervals_belong_to_a_search(titles: Titles, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="or set kind: search"):
        titles('{optim.optimizer.lr: "interval(0.0001, 0.01)"}')
    path = tmp_path / "search.yaml"
    path.write_text(
        "question: q\nkind: search\nbase: []\nseeds: [0]\n"
        "search: {metric: val/error, trials: 4}\n"
        'arms: {a: {space: {optim.optimizer.lr: "tag(log, interval(0.0001, 0.01))", '
        'routing.num_iters: "int(interval(1, 5))", batch_size: [16, 32]}}}\n'
    )
    space = spec.load(str(path)).arms[0].space
    assert space.intervals == (
        Interval("optim.optimizer.lr", 0.0001, 0.01, log=True, integer=False),
        Interval("routing.num_iters", 1, 5, log=False, integer=True),
    )
    assert [axis.key for axis in space.axes] == ["batch_size"]


def test_a_search_never_chooses_on_the_test_set(tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(
        "question: q\nkind: search\nbase: []\nseeds: [0]\narms: {a: }\n"
        "search: {metric: test/error, trials: 4}\n"
    )
    with pytest.raises(
        ConfigError, match=r"search\.metric: test/error: settings are chosen on val"
    ):
        spec.load(str(path))


SEARCH = """\
kind: search
question: q
base: []
seeds: [0]
search: {metric: val/error, trials: 4}
"""


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        ('{optim.optimizer.lr: "tag(lgo, interval(0.1, 0.2))"}', "lgo: no such tag"),
        ('{optim.optimizer.lr: "interval(0.1, inf)"}', "two finite numbers"),
        ("{zip: {epochs: [1, 2], batch_size: [8, 16]}}", "a search has no grid"),
        ("{}, exclude: [{epochs: 1}]", r"arms\.a: exclude: no such key"),
    ],
)
def test_what_a_search_would_ignore_is_refused(tmp_path: Path, space: str, reason: str) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(SEARCH + f"arms: {{a: {{space: {space}}}}}\n")
    with pytest.raises(ConfigError, match=reason):
        spec.load(str(path))
