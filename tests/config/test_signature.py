"""Which settings are one run: what the signature hashes, and what it must not; a cell is a command
line, and travels to another node as text.
"""

import shlex
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.config import cell as cells
from capsweep.config import compose
from capsweep.config.cell import Cell, flatten
from capsweep.config.overrides import render
from capsweep.errors import ConfigError

# The results of users lie in their ledgers under these names. A change here orphans all of them:
# every finished cell would be run again. A new option belongs into cell.NEUTRAL instead.
GOLDEN = {
    "experiment=digits": "024a17b29d610624",
    "experiment=digits seed=1": "a773db582784f342",
    "experiment=digits model=cnn_small": "b5482c3e8d7d3be5",
    "experiment=digits loss.reconstruction.weight=0": "60e16ad9cc9777f6",
    "experiment=digits routing.num_iters=1": "fda81d04997af402",
    "experiment=digits debug=fast": "30c1495dbcc3b538",
    "dataset=mnist model=capsnet": "3955099013a6520c",
    "dataset=multimnist_shards model=capsnet": "2ef45b94a5dcd456",
    "dataset=fashion_mnist model=capsnet optim.optimizer.lr=0.0005": "a217f62a5616f32d",
    # as before there were viewpoints
    "dataset=smallnorb": "c21178f9bd0d34b5",
    "dataset=smallnorb model=capsnet": "512784b479d68b56",
    "dataset=smallnorb model=capsnet stop_accuracy=0.9 dataset.validation=300": "947fda707932ce49",
    "experiment=paper/smallnorb": "5e52286e5c935de5",
}

BASES = (
    "",
    "experiment=digits model=cnn_small",
    "dataset=mnist model=capsnet",
    "dataset=multimnist model=capsnet",
    "dataset=multimnist_shards model=capsnet",
    "dataset=affnist_like model=capsnet",
    "dataset=cifar10 model=capsnet",
    "model=matrix_capsnet",
)


def changed(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `config` with one leaf changed."""
    name, _, rest = key.partition(".")
    return {**config, name: changed(config[name], rest, value) if rest else value}


@pytest.mark.parametrize(("line", "signature"), GOLDEN.items(), ids=GOLDEN)
def test_the_results_of_yesterday_keep_their_names(line: str, signature: str) -> None:
    assert compose.cell(line.split()).signature == signature


@pytest.mark.parametrize("base", BASES)
def test_every_science_leaf_is_hashed_and_no_logistics_leaf_is(base: str) -> None:
    cell = compose.cell(base.split())
    science = flatten(cell.science)
    everything = flatten(cell.config)
    assert len(everything) > len(science) > 20
    for key, value in everything.items():
        config = changed(cell.config, key, [value])
        is_moved = Cell(config, cell.overrides).signature != cell.signature
        assert is_moved == (key in science), key


def test_where_and_how_fast_a_cell_runs_does_not_change_its_signature() -> None:
    line = "trainer.graphs=off trainer.devices=1 resources.gpu=1 logger=csv cluster=address "
    line += "rerun=always places.data=/elsewhere routing.impl=reference dataset.examples.train=9999"
    here, there = compose.cell(["dataset=mnist"]), compose.cell(["dataset=mnist", *line.split()])
    assert here.signature == there.signature


def sciences() -> list[dict[str, Any]]:
    """The science of some cells in which every optional key stands somewhere."""
    shipped = [compose.cell(base.split()).science for base in BASES]
    return [*shipped, changed(shipped[0], "dataset.reader.axes", "chw")]  # of one's own images


def stands(science: Mapping[str, Any], path: str) -> bool:
    """Whether a key is there, be its value null or not."""
    return cells.remove_key(science, path) != science


@pytest.mark.parametrize(("path", "neutral"), cells.NEUTRAL.items(), ids=cells.NEUTRAL)
def test_a_key_at_its_neutral_value_is_not_hashed(path: str, neutral: Any) -> None:
    having = [science for science in sciences() if stands(science, path)]
    assert neutral in [cells.get(science, path) for science in having]
    for science in having:
        at_neutral = cells.hash_science(changed(science, path, neutral))
        assert cells.hash_science(cells.remove_key(science, path)) == at_neutral
        assert cells.hash_science(changed(science, path, [neutral])) != at_neutral


def test_what_a_network_does_not_have_decides_nothing() -> None:
    off = compose.cell(["loss.reconstruction.weight=0"])
    sized = compose.cell(["loss.reconstruction.weight=0", "model.decoder.hidden=[7,3]"])
    assert sized.config == off.config
    assert "decoder" not in off.config["model"]
    plain = compose.cell(["model=cnn_small"])
    assert compose.cell(["model=cnn_small", "routing.num_iters=9"]).signature == plain.signature
    assert plain.science["routing"] is None


OF_SWEEPS = (
    "experiment=overlap model=cnn_small",
    "experiment=em/digits recipe=em_authors routing.norm=types",
    "experiment=paper/multimnist dataset.source=digits routing.num_iters=1",
    "experiment=paper/mnist recipe=authors stop_accuracy=0.99 dataset.validation=5000",
)


@given(line=st.sampled_from([*GOLDEN, *BASES, *OF_SWEEPS]), seed=st.integers(0, 2**63 - 1))
def test_the_cell_of_another_seed_is_the_one_that_is_composed(line: str, seed: int) -> None:
    others = [word for word in line.split() if not word.startswith("seed=")]
    composed, base = compose.cell([*others, f"seed={seed}"]), compose.cell(line.split())
    for derived in (base.with_seed(seed), base.with_seed(seed ^ 1).with_seed(seed)):
        assert derived.to_json() == composed.to_json()
        assert list(derived.science.items()) == list(composed.science.items())
        assert (derived.signature, derived.shape) == (composed.signature, composed.shape)
        assert derived.signature == cells.hash_science(derived.science)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True])
def test_a_cell_has_no_seed_that_cannot_be_composed(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"^seed must be "):
        compose.cell([]).with_seed(seed)
    with pytest.raises(ConfigError, match=r"^seed must be "):
        compose.cell([render("seed", seed)])


LINES = ["", "experiment=digits seed=3", "model=cnn_small", "dataset=mnist debug=fast"]
# `$` begins an interpolation.
REFUSED = "/\\#?%:"  # in the name of a project, by W&B
LETTERS = st.characters(exclude_characters=f"$\0{REFUSED}", exclude_categories=["Cs"])
TEXT = st.text(LETTERS, min_size=1, max_size=20)


@pytest.mark.parametrize("line", LINES)
def test_a_cell_comes_back_from_json_and_from_its_command(line: str) -> None:
    cell = compose.cell(line.split())
    assert Cell.from_json(cell.to_json()) == cell
    program, command, *overrides = shlex.split(cell.command)
    assert (program, command) == ("capsweep", "train")
    assert compose.cell(overrides) == cell


@given(project=TEXT)
def test_the_command_survives_a_shell_whatever_the_text(project: str) -> None:
    folder = f"/of-{project}{REFUSED}x"  # "." alone would be this very folder
    cell = compose.cell([render("logger.project", project), render("places.data", folder)])
    assert cell.config["logger"]["project"] == project
    assert cell.config["places"]["data"] == folder
    assert compose.cell(shlex.split(cell.command)[2:]) == cell
