"""The optimiser of a cell: its schedule, what decay pulls at, clipping, fused kernels."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from trained_cells import read_outputs, train

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.errors import ConfigError
from capsweep.training import build
from capsweep.training.build import make_task
from capsweep.training.module import compute_rate_factor

AUTHORS = {"lr": 0.001, "rate": 0.96, "steps": 2000, "floor": 1e-6}
SMALL = "model.conv.channels=4 model.primary.types=2 model.decoder.hidden=[8]"
MATRIX = "model=matrix_capsnet_tiny routing=em"


def test_decay_is_continuous_warms_up_in_equal_parts_and_ends_at_its_floor() -> None:
    for step, lr in ((0, 1e-3), (30_000, 5.4e-4), (100_000, 1.3e-4), (200_000, 1.7e-5)):
        assert 0.001 * compute_rate_factor(step, **AUTHORS) == pytest.approx(lr, rel=0.02)
    assert compute_rate_factor(1000, **AUTHORS) == pytest.approx(0.96**0.5)
    assert compute_rate_factor(0, **AUTHORS, warmup=0) == 1
    warm = [compute_rate_factor(step, **AUTHORS, warmup=4) for step in range(8)]
    plain = [compute_rate_factor(step, **AUTHORS) for step in range(8)]
    parts = [risen / whole for risen, whole in zip(warm, plain, strict=True)]
    assert parts == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1])
    assert 0.001 * compute_rate_factor(338_432, **AUTHORS) > 1e-6
    for late in (338_434, 10**7):
        assert 0.001 * compute_rate_factor(late, **AUTHORS) == pytest.approx(1e-6)


def test_decay_by_milestones_multiplies_the_rate_at_each_of_them() -> None:
    factors = [
        compute_rate_factor(step, lr=0.1, rate=0.1, steps=9, floor=0, milestones=[2, 4])
        for step in range(6)
    ]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def groups_of(line: str) -> list[tuple[set[str], float]]:
    """Names of the parameters in each group of the optimiser, and the group's weight decay."""
    config = compose.cell(line.split()).config
    network = build.build_network(config)
    names = {parameter: name for name, parameter in network.named_parameters()}
    groups = build.build_optimizer(config)(network).param_groups
    return [({names[p] for p in group["params"]}, group["weight_decay"]) for group in groups]


def test_weight_decay_leaves_biases_and_betas_alone_where_it_is_told_to() -> None:
    bias = "model.primary.bias=true model.conv.batch_norm=true"
    line = f"{MATRIX} {bias} optim.decayed=weights optim.optimizer.weight_decay=2e-7"
    (weights, decay), (others, none) = groups_of(line)
    assert (decay, none) == (2e-7, 0)
    layers = ("capsules.0", "capsules.1", "classes")
    convolutions = ("conv", "primary.pose", "primary.activation")
    assert weights == {
        *(f"{layer}.weight" for layer in convolutions),
        *(f"{layer}.weight_KIJSS" for layer in layers),
    }
    betas = {f"{layer}.routing.{beta}" for layer in layers for beta in ("beta_u_J", "beta_a_J")}
    biases = {f"{layer}.bias" for layer in (*convolutions, "norm")}
    assert others == betas | biases | {"norm.weight"}
    (weights, _), (others, _) = groups_of("model=capsnet_small optim.decayed=weights")
    assert "classes.weight_IJDP" in weights
    assert "classes.routing.bias_JD" in others
    ((parameters, decay),) = groups_of("model=capsnet_small optim.optimizer.weight_decay=0.5")
    assert {"conv.weight", "conv.bias", "classes.routing.bias_JD"} <= parameters
    assert decay == 0.5


@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_a_run_shortens_gradients(small_cell: Callable[..., Cell], precision: str) -> None:
    """So short that Adam divides by its epsilon alone: nothing moves."""
    short = ["model=cnn_small", "epochs=1", f"precision={precision}"]
    for clip, is_still in (("null", False), ("1e-30", True)):
        cell = small_cell(*short, f"optim.clip_norm={clip}")
        before = make_task(cell).network.state_dict()
        train(cell)
        after, _ = read_outputs(cell)
        assert all(torch.equal(before[name], after[name]) for name in before) is is_still


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize(("first", "second"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_state_that_was_saved_in_one_layout_goes_on_in_the_other(
    first: str, second: str, is_fused: bool
) -> None:
    config = compose.cell([*SMALL.split(), f"trainer.fused_optimizer={is_fused}"]).config

    def begin(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        network = build.build_network(config, device)  # laid out for it, and on the processor
        optimizer = build.build_optimizer(config)(network)
        assert optimizer.defaults["fused"] is (True if is_fused else None)
        return network, optimizer

    def step(network: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        noise = torch.Generator().manual_seed(seed)
        for parameter in network.parameters():
            parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(torch.randn(parameter.shape, generator=noise))
        optimizer.step()

    (unbroken, optimizer), (resumed, later) = begin(first), begin(second)
    step(unbroken, optimizer, 1)
    file = io.BytesIO()
    torch.save([unbroken.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, states = torch.load(file, weights_only=True)
    resumed.load_state_dict(weights)
    later.load_state_dict(states)
    layouts = [network.primary.conv.weight.stride() for network in (unbroken, resumed)]
    assert layouts[0] != layouts[1]
    for seed in (2, 3):
        step(unbroken, optimizer, seed)
        step(resumed, later, seed)
    for one, other in zip(unbroken.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)


def test_an_optimiser_that_has_no_fused_form_is_an_error_that_names_the_key() -> None:
    config = copy.deepcopy(compose.cell(SMALL.split()).config)
    config["optim"]["optimizer"] = {"_target_": "torch.optim.RMSprop", "_partial_": True}
    with pytest.raises(ConfigError, match=r"trainer\.fused_optimizer: torch\.optim\.RMSprop has"):
        build.build_optimizer(config)
    config["trainer"]["fused_optimizer"] = False
    network = build.build_network(config)
    assert isinstance(build.build_optimizer(config)(network), torch.optim.RMSprop)
