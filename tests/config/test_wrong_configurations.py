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

BASE = st.sampled_from([[], ["model=capsnet"], ["dataset=mnist"], ["experiment=digits"]])
WRONG = {  # of keys
    "seed": st.integers(-9, -1),
    "epochs": st.integers(-5, 0) | st.sampled_from(["many", True, [1]]),
    "batch_size": st.integers(-5, 0),
    "limit_batches": st.integers(-5, 0),
    "dataset.validation": st.integers(-9, -1),
    "dataset.shift": st.integers(-9, -1),
    "optim.optimizer.lr": st.floats(-1, 0),
    "optim.optimizer.weight_decay": st.floats(-1, -1e-6),
    "optim.schedule.rate": st.floats(1.01, 9),
    "trainer.checkpoint_interval": st.floats(-9, -0.01),
    "resources.cpu": st.integers(-5, 0),
    "routing.num_iters": st.integers(-5, 0),
    "model.primary.kernel": st.integers(21, 60),  # larger than what the first layer leaves
    "model.conv.kernel": st.integers(29, 60),
    "model.class_pose": st.integers(-5, 0),
    "loss.classification.absent": st.floats(0.9, 1),
    "loss.reconstruction.weight": st.floats(-1, -1e-6),
    "loss.class_weight": st.sampled_from([[1, 2], [0] * 10, "heavy", 2]),
    "precision": st.sampled_from(["16", "double"]),
    "trainer.accelerator": st.just("tpu"),
    "resources.gpu": st.sampled_from(["all", 1.5]),
    **dict.fromkeys(["model", "dataset", "routing", "loss", "experiment"], st.just("Digits")),
}


@st.composite
def wrong(draw: st.DrawFn) -> tuple[list[str], str]:
    """Overrides that are wrong in one place, and the key that must be named."""
    kind, base = draw(st.sampled_from(["value", "typo"])), draw(BASE)
    key = draw(st.sampled_from(sorted(WRONG)))
    if kind == "value":
        return [*base, render(key, draw(WRONG[key]))], key
    at = draw(st.integers(0, len(key) - 1))
    typo = key[:at] + draw(st.sampled_from(["x", "q", "_"])) + key[at:]
    return [*base, f"{typo}=1"], typo


@seed(2026)
@at_most_examples(200)
@given(found=wrong())
def test_what_is_wrong_in_one_place_is_refused_in_the_plan_by_its_key(
    found: tuple[list[str], str],
) -> None:
    overrides, key = found
    with tempfile.TemporaryDirectory() as folder, pytest.raises(ConfigError) as refusal:
        plan.make_plan([Point("arm", "arm", 0, compose.cell(overrides))], Ledger(folder))
    assert key in str(refusal.value), (overrides, str(refusal.value))
    assert "\n" not in str(refusal.value)
