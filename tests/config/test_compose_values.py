"""Values set on a composed configuration give what OmegaConf gives, whatever is set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from omegaconf import OmegaConf

from capsweep.config import compose, validation
from capsweep.config import overrides as grammar
from capsweep.config.bounds import fit_types
from capsweep.config.overrides import render
from capsweep.errors import ConfigError

GROUPS = {
    "model": ["capsnet", "capsnet_small", "cnn_small"],
    "dataset": ["digits", "mnist"],
    "experiment": ["digits"],
    "logger": ["csv", "wandb"],
}
VALUES = {
    "seed": st.integers(-1, 3),
    "epochs": st.sampled_from([1, 5, 2.5, "many"]),
    "batch_size": st.integers(0, 64),
    "optim.optimizer.lr": st.sampled_from([1, 0.01, 1e-4, "0.1", None]),
    "optim.optimizer.betas": st.sampled_from([[0.9, 0.999], [0.5], 3]),
    "routing.num_iters": st.integers(0, 5),
    "loss.reconstruction.weight": st.sampled_from([0, 0.0005, 1, "${optim.optimizer.lr}"]),
    "model.conv.channels": st.sampled_from([8, [8, 8, 8]]),
    "model.routing.num_iters": st.just(2),
    "dataset.num_classes": st.integers(2, 12),
    "dataset.validation": st.sampled_from([0, 60]),
    "resources.cpu": st.integers(1, 3),
    "trainer.threads": st.sampled_from([1, "${resources.cpu}", "${epochs}", "${seed}"]),
    "places.storage": st.sampled_from(["here", "/tmp/there"]),
    "places.data": st.sampled_from(["${places.storage}/mine", "/data"]),
    "limit_batches": st.sampled_from([None, 3]),
    "dataset.name": st.just("renamed"),
    "no.such.key": st.just(1),
}


def slowly(texts: list[str]) -> dict:
    """Hydra's own composition of groups and values in one, resolved; then our checks."""
    parsed = grammar.parse_single(texts)
    groups = tuple(o.text for o in parsed if grammar.is_group(o.key))
    values = [o for o in parsed if not grammar.is_group(o.key)]
    for override in parsed:
        if grammar.is_group(override.key):
            compose._check_option(override)
    _, written, schema = compose._compose_groups(groups)
    config = OmegaConf.create(written)
    OmegaConf.set_struct(config, True)
    for override in values:
        compose._set_value(config, schema, override)
    plain = compose._resolve_config(config)
    fit_types(plain, [o.key for o in values], schema)
    validation.check_config(plain)
    plain["places"] = {name: compose.places.absolute(p) for name, p in plain["places"].items()}
    return validation.make_canonical(plain)


def either(road, texts: list[str]) -> object:
    """What a road leads to: a configuration, or that it is refused."""
    try:
        return road(texts)
    except ConfigError:
        return ConfigError


@given(data=st.data())
@at_most_examples(300)
def test_a_cell_is_what_omegaconf_resolves(data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.sampled_from(sorted(GROUPS)), unique=True, max_size=2))
    keys = data.draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=4))
    texts = [f"{group}={data.draw(st.sampled_from(GROUPS[group]))}" for group in groups]
    texts += [render(key, data.draw(VALUES[key])) for key in keys]
    assert either(lambda t: compose.cell(t).config, texts) == either(slowly, texts)


@pytest.mark.parametrize(
    "texts",
    [
        ["loss.reconstruction.weight=${optim.optimizer.lr}", "optim.optimizer.lr=0.05"],
        ["optim.optimizer.lr=0.05", "loss.reconstruction.weight=${optim.optimizer.lr}"],
        ["limit_batches=${batch_size}", "batch_size=${epochs}", "epochs=7"],
    ],
)
def test_what_an_override_is_drawn_from_may_be_overridden_too(texts: list[str]) -> None:
    assert compose.cell(texts).config == slowly(texts)


def test_a_cell_shares_nothing_with_the_next() -> None:
    first = compose.cell(["seed=1"])
    first.config["dataset"]["image_shape"].append(9)  # pyright: ignore
    assert compose.cell(["seed=2"]).config["dataset"]["image_shape"] == [1, 28, 28]
