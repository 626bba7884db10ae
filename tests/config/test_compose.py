"""A cell is what Hydra itself composes, and leaves no trace in the next."""

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from omegaconf import OmegaConf

from capsweep.cli import train
from capsweep.config import compose, package_files, validation
from capsweep.config.overrides import render
from capsweep.errors import ConfigError

LINES = [
    "seed=3",
    "experiment=digits",
    "experiment=digits epochs=3 optim.schedule.steps=7",
    "experiment=digits model=cnn_small",
    "model=cnn_small experiment=digits",
    "experiment=digits model=capsnet dataset=mnist",
    "debug=fast",
    "debug=fast experiment=digits epochs=2 logger=wandb",
    "model=cnn_small model.conv.channels=[8,8,8] model.dropout=0.25",
    "routing.num_iters=1 loss.reconstruction.weight=0.5 model.decoder.hidden=[16]",
    "loss=cross_entropy optim.optimizer.betas=[0.5,0.9]",
    "dataset.validation=5 resources.cpu=2 limit_batches=4",
    "cluster=address cluster.address=10.0.0.1:6379 logger.project=a-b",
    "loss.reconstruction.weight=${optim.optimizer.lr} optim.optimizer.lr=0.05",
    "limit_batches=${batch_size} batch_size=${epochs} epochs=7",
]


def hydra_says(overrides: list[str]) -> dict[str, Any]:
    """The configuration by Hydra alone, in canonical form."""
    with initialize_config_dir(str(package_files.find_folder("conf")), version_base="1.3"):
        config = hydra_compose("train", overrides=overrides)
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return validation.make_canonical({str(key): value for key, value in plain.items()})


@pytest.mark.parametrize("line", LINES)
def test_a_cell_is_what_hydra_composes(line: str) -> None:
    overrides = [*line.split(), "places.storage=/nowhere"]
    assert compose.cell(overrides).config == hydra_says(overrides)


VALUES = {
    "seed": st.integers(-1, 3),
    "epochs": st.sampled_from([1, 5, 2.5, "many"]),
    "optim.optimizer.betas": st.sampled_from([[0.9, 0.999], [0.5], 3]),
    "loss.reconstruction.weight": st.sampled_from([0, 0.0005, 1, "${optim.optimizer.lr}"]),
    "model.conv.channels": st.sampled_from([8, [8, 8, 8]]),
    "model.routing.num_iters": st.just(2),
    "trainer.threads": st.sampled_from([1, "${resources.cpu}", "${epochs}", "${seed}"]),
    "limit_batches": st.sampled_from([None, 3]),
    "no.such.key": st.just(1),
}


@given(values=st.fixed_dictionaries({}, optional=VALUES))
@at_most_examples(200)
def test_a_cell_leaves_no_trace_in_the_next_also_where_it_is_refused(values: dict) -> None:
    before = compose.cell(["seed=1"]).config
    with contextlib.suppress(ConfigError):
        compose.cell([render(key, value) for key, value in values.items()])
    assert compose.cell(["seed=1"]).config == before


def test_interpolations_that_multiply_are_refused_before_they_are_resolved() -> None:
    """Each key stands 40 times in the one before: a chain of six would never end."""
    keys = ["project", "entity", "mode", "name", "max_seconds", "every_n_steps"]
    chain = [
        f"logger.{key}='{f'${{logger.{inner}}}' * 40}'" for key, inner in itertools.pairwise(keys)
    ]
    with pytest.raises(ConfigError, match=r"^logger\.project, .*: more than 20 interpolations;"):
        compose.cell(["logger=wandb", *chain])
    few = compose.cell([f"logger.project='{'${rerun}' * 20}'"])
    assert few.config["logger"]["project"] == "never" * 20


def test_a_preset_that_is_no_yaml_is_named(conf_tree: Callable[[], Path]) -> None:
    (conf_tree() / "experiment" / "mine.yaml").write_text("epochs: [1\n")
    with pytest.raises(ConfigError, match=r"^conf/: .*experiment/mine\.yaml") as caught:
        compose.cell(["experiment=mine"])
    assert "\n" not in str(caught.value)


def test_a_key_that_went_is_left_out_and_one_line_of_a_process_names_what_replaced_it(
    capsys: pytest.CaptureFixture[str],
    conf_tree: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compose._report_cut_key.cache_clear()
    old = conf_tree() / "experiment" / "old.yaml"
    old.write_text("# @package _global_\ntrainer: {compile: reduce-overhead, threads: 2}\n")
    typed = compose.cell(["trainer.compile=default", "trainer.threads=2"])
    stored = compose.cell(["experiment=old"])
    for cell in (typed, stored, compose.cell(["trainer.threads=2", "trainer.compile=null"])):
        assert cell.config == compose.cell(["trainer.threads=2"]).config
    assert typed.overrides == ("trainer.threads=2",)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainer.compile is ignored: trainer.graphs replaced it ")
    monkeypatch.setattr(sys, "argv", ["capsweep"])
    monkeypatch.setenv("COMP_LINE", "")
    assert train.main(["--cfg", "job", "trainer.compile=default"]) == 0
    assert "graphs: auto" in capsys.readouterr().out


def test_a_cell_shares_nothing_with_the_next() -> None:
    first = compose.cell(["seed=1"])
    first.config["dataset"]["image_shape"].append(9)  # pyright: ignore
    assert compose.cell(["seed=2"]).config["dataset"]["image_shape"] == [1, 28, 28]
