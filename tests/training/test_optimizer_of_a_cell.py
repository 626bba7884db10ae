"""What weight decay pulls at, how long a gradient may be, and which margin a step has."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.ledger.ledger import folder_of
from capsweep.model.losses import spread_loss
from capsweep.training import build
from capsweep.training.module import make_task
from capsweep.training.objective import Losses, Objective, Progress
from capsweep.training.run import run

TINY = (
    "model=matrix_capsnet",
    "model.conv.channels=4",
    "model.primary.types=2",
    "model.capsules.types=[2,2]",
)


def groups_of(line: str) -> list[tuple[set[str], float]]:
    """Names of the parameters in each group of the optimiser, and the group's weight decay."""
    config = compose.cell(line.split()).config
    network = build.build_network(config)
    names = {parameter: name for name, parameter in network.named_parameters()}
    groups = build.build_optimizer(config)(network).param_groups
    return [({names[p] for p in group["params"]}, group["weight_decay"]) for group in groups]


def test_weight_decay_leaves_biases_and_betas_alone() -> None:
    bias = "model.primary.bias=true model.conv.batch_norm=true"
    line = f"{' '.join(TINY)} {bias} optim.decayed=weights optim.optimizer.weight_decay=2e-7"
    (weights, decay), (others, none) = groups_of(line)
    assert (decay, none) == (2e-7, 0)
    assert weights == {
        "conv.weight",
        "primary.pose.weight",
        "primary.activation.weight",
        "capsules.0.weight_KIJSS",
        "capsules.1.weight_KIJSS",
        "classes.weight_KIJSS",
    }
    layers = ("capsules.0", "capsules.1", "classes")
    betas = {f"{layer}.routing.{beta}" for layer in layers for beta in ("beta_u_J", "beta_a_J")}
    biases = {"conv.bias", "norm.weight", "norm.bias", "primary.pose.bias"}
    assert others == betas | biases | {"primary.activation.bias"}


def test_weight_decay_leaves_the_bias_of_a_routing_alone() -> None:
    (weights, _), (others, _) = groups_of("model=capsnet_small optim.decayed=weights")
    assert "classes.weight_IJDP" in weights
    assert "classes.routing.bias_JD" in others


def test_weight_decay_pulls_at_everything_unless_told_otherwise() -> None:
    ((parameters, decay),) = groups_of("model=capsnet_small optim.optimizer.weight_decay=0.5")
    assert {"conv.weight", "conv.bias", "classes.routing.bias_JD"} <= parameters
    assert decay == 0.5


def trained(cell: Cell) -> dict[str, Tensor]:
    """The weights that a run of `cell` leaves."""
    here = places.resolve(cell.config["places"])
    run(cell, here)
    path = Path(here.ledger) / folder_of(cell.signature) / "weights.ckpt"
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("is_clipped", [False, True])
def test_a_run_shortens_gradients(small_cell: Callable[..., Cell], is_clipped: bool) -> None:
    # So short that Adam divides by its epsilon alone: nothing moves.
    clip = ["optim.clip_norm=1e-30"] if is_clipped else []
    cell = small_cell("model=cnn_small", "epochs=1", *clip)
    before = make_task(cell).network.state_dict()
    after = trained(cell)
    assert all(torch.equal(before[name], after[name]) for name in before) is is_clipped


def test_a_step_has_the_margin_of_its_place_and_an_evaluation_the_last() -> None:
    config = compose.cell(list(TINY)).config
    torch.manual_seed(0)
    network, objective = build.build_network(config), build.build_objective(config)
    batch = Batch(torch.rand(3, 1, 28, 28), torch.tensor([3, 1, 4]))
    target_BN = torch.nn.functional.one_hot(batch.labels, 10).float()
    for progress, margin in ((Progress(0, 10), 0.2), (Progress(5, 10), 0.55), (None, 0.9)):
        losses = objective(network, batch, progress)
        expected = spread_loss(losses.scores_BN, target_BN, margin=margin, reduction="mean")
        torch.testing.assert_close(losses.total, expected)


def test_the_margin_of_a_run_grows_from_its_first_to_its_last_step(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Progress | None] = []
    whole = Objective.__call__

    def watched(
        self: Objective, network: nn.Module, batch: Batch, progress: Progress | None = None
    ) -> Losses:
        seen.append(progress)
        return whole(self, network, batch, progress)

    monkeypatch.setattr(Objective, "__call__", watched)
    storage = [text for text in small_cell().overrides if text.startswith("places.storage")]
    small = ["epochs=3", "limit_batches=2", "trainer.accelerator=cpu", "logger=csv"]
    trained(compose.cell([*TINY, *small, *storage]))
    in_training = [progress for progress in seen if progress is not None]
    assert in_training == [Progress(step, 6) for step in range(6)]
    assert None in seen  # the evaluations
