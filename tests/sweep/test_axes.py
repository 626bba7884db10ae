"""Axes: Hydra's sweep grammar in files, coupled axes, exclusions, and the variables of make."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsweep.config.overrides import Interval
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


def test_coupled_axes_move_together(titles: Titles) -> None:
    space = "{zip: {epochs: [1, 2], batch_size: [64, 32]}, routing.num_iters: [1, 3]}"
    assert titles(space) == [
        "routing.num_iters=1 · epochs=1 · batch_size=64",
        "routing.num_iters=1 · epochs=2 · batch_size=32",
        "routing.num_iters=3 · epochs=1 · batch_size=64",
        "routing.num_iters=3 · epochs=2 · batch_size=32",
    ]


def test_axes_are_coupled_on_the_command_line(titles: Titles) -> None:
    chosen = Choices(overrides=["epochs=1,2", "batch_size=8,16"], zips=["epochs,batch_size"])
    assert titles("{}", chosen=chosen) == ["epochs=1 · batch_size=8", "epochs=2 · batch_size=16"]


GRID = "{routing.num_iters: [1, 3], loss.reconstruction.weight: [0, 0.0005]}"
ZIP = "{zip: {epochs: [1, 2], batch_size: [64, 32]}}"
AXES = ["epochs=1,2", "batch_size=8,16", "optim.optimizer.lr=0.1,0.2"]
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    (
        ZIP,
        "",
        {"overrides": ["batch_size=8,16,32"]},
        "^axes.yaml: arm capsnet: zip: coupled axes need",
    ),
    ("{}", "", {"overrides": AXES[:1], "zips": ["epochs,seed"]}, "ZIP=epochs,seed: no arm of "),
    (
        "{}",
        "",
        {"overrides": AXES, "zips": ["epochs,batch_size", "batch_size,optim.optimizer.lr"]},
        "batch_size is coupled twice",
    ),
    (GRID, "exclude: [{routing.num_iters: 7}]\n", {}, r"exclude: no place has .*num_iters=7"),
    (GRID, "exclude: [{arm: capsnet}]\n", {}, "no place of arm capsnet is left"),
    (GRID, "", {"excludes": ["epochs=9"], "routing": "1"}, "EXCLUDE: no place has epochs=9"),
    (GRID, "", {"recon": "maybe"}, "RECON=maybe: 'maybe' is neither on, off nor a weight"),
    ("{}", "", {"recon": "on"}, r"RECON: no arm of axes\.yaml has the axis"),
    (GRID, "", {"arms": "cats"}, "ARMS=cats: 'cats' is no arm; have cnn, capsnet"),
    (GRID, "", {"overrides": ["epochs=range(3,1)"]}, r"epochs=range\(3,1\): gives no value"),
    ('{dataset: "glob(x*)"}', "", {}, r"dataset=glob\(x\*\): matches no option"),
    ('{optim.optimizer.lr: "interval(0.0001, 0.01)"}', "", {}, "or set kind: search"),
]


@pytest.mark.parametrize(("space", "more", "typed", "message"), REFUSED)
def test_axes_that_cannot_be_meant_are_refused(
    space: str, more: str, typed: dict[str, Any], message: str, titles: Titles
) -> None:
    with pytest.raises(ConfigError, match=message):
        titles(space, more, Choices(**typed))


def test_excluded_places_are_left_out(titles: Titles) -> None:
    more = "exclude: [{routing.num_iters: 1, loss.reconstruction.weight: 0}]\n"
    assert len(titles(GRID)) == 4
    assert "routing.num_iters=1 · loss.reconstruction.weight=0" not in titles(GRID, more)
    assert len(titles(GRID, more)) == 3
    assert len(titles(GRID, chosen=Choices(excludes=["routing.num_iters=3"]))) == 2
    # An exclusion of the file need not match where its axis is pinned.
    assert titles(GRID, "exclude: [{routing.num_iters: 3}]\n", Choices(routing="1"))


@pytest.mark.parametrize(
    ("recon", "weights"),
    [("off", ["0"]), ("on", ["0.0005"]), ("off,on", ["0", "0.0005"]), ("0.1", ["0.1"])],
)
def test_recon_sets_the_reconstruction_weight(
    titles: Titles, recon: str, weights: list[str]
) -> None:
    found = titles("{loss.reconstruction.weight: [0, 7]}", chosen=Choices(recon=recon))
    assert [title.partition("=")[2].removesuffix(".0") for title in found] == weights


SEARCH = """\
kind: search
question: q
base: []
seeds: [0]
search: {metric: val/error, trials: 4}
"""


def read_search(folder: Path, space: str, metric: str = "val/error") -> spec.Sweep:
    """A search of one arm with this space."""
    path = folder / "search.yaml"
    path.write_text(SEARCH.replace("val/error", metric) + f"arms: {{a: {{space: {space}}}}}\n")
    return spec.load(str(path))


def test_intervals_belong_to_a_search(tmp_path: Path) -> None:
    lr = 'optim.optimizer.lr: "tag(log, interval(0.0001, 0.01))"'
    iterations = 'routing.num_iters: "int(interval(1, 5))"'
    space = read_search(tmp_path, f"{{{lr}, {iterations}, batch_size: [16, 32]}}").arms[0].space
    assert space.intervals == (
        Interval("optim.optimizer.lr", 0.0001, 0.01, log=True, integer=False),
        Interval("routing.num_iters", 1, 5, log=False, integer=True),
    )
    assert [axis.key for axis in space.axes] == ["batch_size"]


@pytest.mark.parametrize(
    ("space", "metric", "reason"),
    [
        ('{optim.optimizer.lr: "tag(lgo, interval(0.1, 0.2))"}', "val/error", "log is the only"),
        ('{optim.optimizer.lr: "interval(0.1, inf)"}', "val/error", "two finite numbers"),
        (ZIP, "val/error", "a search has no grid"),
        ("{}, exclude: [{epochs: 1}]", "val/error", r"arms\.a: exclude: no such key"),
        ("{}, optional: true", "val/error", r"arms\.a: optional: no such key; have fixed, space$"),
        ("{}", "test/error", r"search\.metric: test/error: settings are chosen on val"),
    ],
)
def test_what_a_search_would_ignore_is_refused(
    tmp_path: Path, space: str, metric: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_search(tmp_path, space, metric)
