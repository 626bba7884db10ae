"""Fused optimisers: the same steps in one kernel, also after a state that another one left."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from capsweep.config import compose, places
from capsweep.config.cell import Cell, plain_copy
from capsweep.data.batches import Batch
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import folder_of
from capsweep.training import build
from capsweep.training.run import run

SMALL = ("model.conv.channels=4", "model.primary.types=2", "model.decoder.hidden=[8]")
MATRIX = (
    "model=matrix_capsnet",
    "model.conv.channels=4",
    "model.primary.types=2",
    "model.capsules.types=[2,2]",
)


def stepped(overrides: tuple[str, ...], is_fused: bool) -> tuple[list[float], list[Tensor]]:
    """Losses and weights of three steps on one batch, in float64: rounding is far away."""
    config = compose.cell([*overrides, f"trainer.fused_optimizer={is_fused}"]).config
    torch.manual_seed(0)
    network = build.build_network(config).double()
    optimizer = build.build_optimizer(config)(network)
    assert optimizer.defaults["fused"] is (True if is_fused else None)
    images = torch.rand(4, *config["dataset"]["image_shape"], dtype=torch.float64)
    batch, objective, losses = Batch(images, torch.arange(4)), build.build_objective(config), []
    for _ in range(3):
        optimizer.zero_grad()
        total = objective(network, batch).total
        total.backward()
        optimizer.step()
        losses.append(float(total.detach()))
    return losses, [parameter.detach() for parameter in network.parameters()]


@pytest.mark.parametrize(
    "overrides",
    [
        SMALL,
        (*SMALL, "model.primary.divided=true", "optim.optimizer.weight_decay=0.1"),
        ("model=cnn_tiny", "loss=cross_entropy"),
        MATRIX,
        (*MATRIX, "routing=em", "optim.decayed=weights", "optim.optimizer.weight_decay=0.1"),
    ],
)
def test_fused_steps_are_the_steps(overrides: tuple[str, ...]) -> None:
    losses, weights = stepped(overrides, is_fused=True)
    expected_losses, expected_weights = stepped(overrides, is_fused=False)
    assert losses == pytest.approx(expected_losses, rel=1e-9)
    for weight, expected in zip(weights, expected_weights, strict=True):
        torch.testing.assert_close(weight, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("was_fused", [None, True])
def test_moments_saved_in_another_layout_are_not_mixed_up(was_fused: bool | None) -> None:
    weight = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)

    def optimizer(is_fused: bool | None) -> tuple[torch.optim.Adam, nn.Parameter]:
        parameter = nn.Parameter(weight.clone())
        parameter.grad = gradient.clone()
        return torch.optim.Adam([parameter], lr=0.1, fused=is_fused), parameter

    first, _ = optimizer(was_fused)
    first.step()
    saved = copy.deepcopy(first.state_dict())
    for moment in ("exp_avg", "exp_avg_sq"):
        saved["state"][0][moment] = saved["state"][0][moment].contiguous()
    gone_on, parameter = optimizer(True)
    gone_on.load_state_dict(saved)
    build.fit_loaded_state(gone_on)
    gone_on.step()
    assert gone_on.param_groups[0]["fused"] is True

    unbroken, expected = optimizer(True)
    unbroken.step()
    with torch.no_grad():
        expected.copy_(weight)
    expected.grad = gradient.clone()
    unbroken.step()
    torch.testing.assert_close(parameter, expected)


def test_an_optimiser_that_has_no_fused_form_is_an_error_that_names_the_key() -> None:
    config = plain_copy(compose.cell(list(SMALL)).config)
    config["optim"]["optimizer"] = {
        "_target_": "torch.optim.RMSprop",
        "_partial_": True,
        "lr": 0.1,
    }
    with pytest.raises(ConfigError, match=r"trainer\.fused_optimizer: torch\.optim\.RMSprop has"):
        build.build_optimizer(config)
    config["trainer"]["fused_optimizer"] = False
    network = build.build_network(config)
    assert isinstance(build.build_optimizer(config)(network), torch.optim.RMSprop)


def test_how_the_optimiser_computes_is_not_hashed() -> None:
    plain, fused_one = (
        compose.cell([f"trainer.fused_optimizer={choice}"]) for choice in ("false", "true")
    )
    assert plain.signature == fused_one.signature


def test_gradients_are_shortened_in_mixed_precision_too(small_cell: Callable[..., Cell]) -> None:
    """Lightning refuses this of fused optimisers, for the sake of float16."""
    precision = "precision=bf16-mixed"
    cell = small_cell("model=cnn_small", "epochs=1", "optim.clip_norm=1e-30", precision)
    here = places.resolve(cell.config["places"])
    assert run(cell, here)["status"] == "finished"
    assert (Path(here.ledger) / folder_of(cell.signature) / "result.json").exists()
