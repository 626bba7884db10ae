"""Two hundred configurations that are wrong in one place: each is refused by the plan, which names
the key."""

import tempfile

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from laws import at_most_examples

from capsweep.config import compose
from capsweep.config.overrides import render
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.sweep import plan
from capsweep.sweep.expand import Point

BASES = [[], ["model=cnn_small"], ["model=capsnet"], ["dataset=mnist"], ["experiment=digits"]]
CAPSULES = [[], ["model=capsnet"], ["dataset=mnist"]]
NUMBERS = {  # keys of numbers, and numbers out of their bounds
    "seed": st.integers(-9, -1),
    "epochs": st.integers(-5, 0),
    "batch_size": st.integers(-5, 0),
    "limit_batches": st.integers(-5, 0),
    "dataset.validation": st.integers(-9, -1),
    "dataset.shift": st.integers(-9, -1),
    "optim.optimizer.lr": st.floats(-1, 0),
    "optim.optimizer.eps": st.floats(-1, 0),
    "optim.optimizer.weight_decay": st.floats(-1, -1e-6),
    "optim.schedule.rate": st.floats(1.01, 9),
    "optim.schedule.steps": st.integers(-5, 0),
    "trainer.checkpoint_interval": st.floats(-9, -0.01),
    "resources.cpu": st.integers(-5, 0),
}
CAPSULE_NUMBERS = {
    "routing.num_iters": st.integers(-5, 0),
    "model.primary.types": st.integers(-5, 0),
    "model.primary.kernel": st.integers(21, 60),  # larger than what the first layer leaves
    "model.conv.kernel": st.integers(29, 60),
    "model.class_pose": st.integers(-5, 0),
    "loss.classification.absent": st.floats(0.9, 1),
    "loss.reconstruction.weight": st.floats(-1, -1e-6),
}
NAMES = {
    "precision": ["16", "double"],
    "rerun": ["sometimes"],
    "trainer.accelerator": ["tpu"],
    "logger.mode": ["perhaps"],
    "resources.gpu": ["all", "1.5"],
}
OPTIONS = ["model", "dataset", "routing", "loss", "optim", "logger", "experiment"]


@st.composite
def wrong(draw: st.DrawFn) -> tuple[list[str], str]:
    """Overrides that are wrong in one place, and the key that must be named."""
    kind = draw(st.sampled_from(["number", "capsule", "name", "typo", "type", "option", "target"]))
    base = draw(st.sampled_from(CAPSULES if kind in ("capsule", "typo") else BASES))
    if kind in ("number", "capsule"):
        table = NUMBERS if kind == "number" else CAPSULE_NUMBERS
        key = draw(st.sampled_from(sorted(table)))
        return [*base, render(key, draw(table[key]))], key
    if kind == "name":
        key = draw(st.sampled_from(sorted(NAMES)))
        return [*base, f"{key}={draw(st.sampled_from(NAMES[key]))}"], key
    if kind == "type":
        key = draw(st.sampled_from(["epochs", "seed", "optim.optimizer.lr", "dataset.shift"]))
        return [*base, f"{key}={draw(st.sampled_from(['many', 'true', '[1]', 'null']))}"], key
    if kind == "option":
        key = draw(st.sampled_from(OPTIONS))
        return [f"{key}={draw(st.sampled_from(['no_such', 'Digits', 'x1']))}"], key
    if kind == "target":
        key = draw(st.sampled_from(["optim.optimizer._target_", "dataset.reader._target_"]))
        target = draw(
            st.sampled_from(
                [
                    "os.system",
                    "capsweep.storage.files.os.system",
                    "torch.nothing",
                    "torch.load",
                    "torch.hub.load",
                ]
            )
        )
        return [*base, f"{key}={target}"], key
    key = draw(st.sampled_from(sorted({**NUMBERS, **CAPSULE_NUMBERS})))
    at = draw(st.integers(0, len(key) - 1))
    typo = key[:at] + draw(st.sampled_from(["x", "q", "_"])) + key[at:]
    return [*base, f"{typo}=1"], typo


def planned(overrides: list[str]) -> plan.Plan:
    """The plan of one cell, on an empty ledger."""
    with tempfile.TemporaryDirectory() as folder:
        return plan.make_plan([Point("arm", "arm", 0, compose.cell(overrides))], Ledger(folder))


@seed(2026)
@at_most_examples(200)
@given(found=wrong())
def test_what_is_wrong_in_one_place_is_refused_in_the_plan_by_its_key(
    found: tuple[list[str], str],
) -> None:
    overrides, key = found
    with pytest.raises(ConfigError) as refusal:
        planned(overrides)
    assert key in str(refusal.value), (overrides, str(refusal.value))
    assert "\n" not in str(refusal.value)
