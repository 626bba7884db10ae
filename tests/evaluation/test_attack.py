"""Attacks where the optimum is known: a linear network, whose loss rises towards the corners."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor, nn

from capsweep.evaluation import attack
from capsweep.evaluation.attack import Aim, Attack, AttackCount, AttackOptions
from capsweep.evaluation.threat_model import ThreatModel
from capsweep.model.capsules import NetworkOutput

CLASSES, SIDE, COUNT = 4, 5, 12
METHODS = ("fgsm", "bim", "pgd")
INFINITY = float("inf")


class Linear(nn.Module):
    """Logits that are a linear function of the pixels."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight_NE = torch.randn((classes, SIDE * SIDE), generator=generator)
        self.weight_NE = nn.Parameter(weight_NE)

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        return NetworkOutput(images_BCHW.flatten(1) @ self.weight_NE.T)


def make_model(network: nn.Module, low: float = -INFINITY, high: float = INFINITY) -> ThreatModel:
    """Images between 0 and 1, of the classes that the network sees in them."""
    generator = torch.Generator().manual_seed(1)
    images_BCHW = torch.rand((COUNT, 1, SIDE, SIDE), generator=generator)
    labels_B = network(images_BCHW).scores_BN.argmax(dim=1)
    low_B111, high_B111 = (torch.full((COUNT, 1, 1, 1), bound) for bound in (low, high))
    return ThreatModel(images_BCHW, labels_B, low_B111, high_B111, lambda images: images, "")


def make_attack(
    method: str = "fgsm",
    eps: float = 0.1,
    steps: int = 10,
    restarts: int = 3,
    targeted: bool = False,
    seed: int = 0,
) -> Attack:
    options = AttackOptions((method,), (eps,), targeted, steps=steps, restarts=restarts)
    return options.list_attacks(method, seed)[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_target", [False, True])
def test_two_linear_logits_move_by_eps_times_the_norm_of_their_difference(
    method: str, is_target: bool
) -> None:
    network = Linear(classes=2)
    shown = make_model(network)
    aimed_B = 1 - shown.labels_B if is_target else shown.labels_B
    aim, made = Aim(aimed_B, is_target), make_attack(method, 0.05)
    moved = attack.perturb_images(network, shown, made, shown.images_BCHW, aim)
    weight_NE = network.weight_NE.detach()
    wanted_BE = torch.sign(weight_NE[1 - shown.labels_B] - weight_NE[shown.labels_B])
    torch.testing.assert_close(
        (moved - shown.images_BCHW).flatten(1), 0.05 * wanted_BE, atol=1e-6, rtol=0
    )


def test_the_accuracy_of_two_linear_logits_under_attack_is_the_share_of_wide_margins() -> None:
    network = Linear(classes=2)
    shown = make_model(network)
    weight_NE = network.weight_NE.detach()
    logit_BN = network(shown.images_BCHW).scores_BN.detach()
    margin_B = (logit_BN[:, 0] - logit_BN[:, 1]).abs() / (weight_NE[0] - weight_NE[1]).abs().sum()
    for eps in (0.01, 0.05, 0.1):
        for method in METHODS:
            found = attack.count_successes(network, shown, make_attack(method, eps), first=0)
            assert found == AttackCount(int((margin_B < eps).sum()), COUNT, 0)
    assert 0 < int((margin_B < 0.05).sum()) < COUNT


@at_most_examples(30)
@given(st.sampled_from(METHODS), st.floats(0.01, 0.6), st.integers(1, 12), st.booleans())
def test_images_stay_in_the_ball_and_within_the_bounds(
    method: str, eps: float, steps: int, is_target: bool
) -> None:
    network = Linear()
    shown = make_model(network, 0.0, 1.0)
    one = make_attack(method, eps, steps=steps)
    start = attack.draw_start(shown, one, first=0, restart=0)
    for images in (
        start,
        attack.perturb_images(network, shown, one, start, Aim(shown.labels_B, is_target)),
    ):
        assert float((images - shown.images_BCHW).abs().max()) <= eps + 1e-6
        assert float(images.min()) >= 0
        assert float(images.max()) <= 1


class Rugged(Linear):
    """Logits that go up and down, so that starts differ."""

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        return NetworkOutput(torch.sin(3 * super().forward(images_BCHW).scores_BN))


@pytest.mark.parametrize(("targeted", "eps"), [(False, 0.004), (True, 0.03)])
def test_more_restarts_never_succeed_less_often(targeted: bool, eps: float) -> None:
    """The law of PGD: the starts of fewer restarts are among those of more. None orders PGD and
    BIM, which starts at the image itself."""
    network = Rugged()
    shown = make_model(network)
    found = [
        attack.count_successes(
            network, shown, make_attack("pgd", eps, steps=1, restarts=n, targeted=targeted), 0
        )
        for n in (1, 2, 4, 8)
    ]
    successes = [count.successes for count in found]
    assert successes == sorted(successes)
    assert successes[0] < successes[-1]


def test_the_success_of_targeted_attacks_on_a_linear_network_rises_with_eps() -> None:
    network = Linear()
    shown = make_model(network)
    counts = [
        attack.count_successes(network, shown, make_attack("bim", eps, targeted=True), 0)
        for eps in (0.01, 0.05, 0.1, 0.2, 0.4, 0.8)
    ]
    assert {count.tries for count in counts} == {COUNT * (CLASSES - 1)}
    rates = [count.successes / count.tries for count in counts]
    assert rates == sorted(rates)
    assert rates[0] < 0.2
    assert rates[-1] > 0.8


def test_what_is_misclassified_already_is_a_success_of_the_attacker() -> None:
    network = Linear()
    shown = make_model(network)
    wrong = replace(shown, labels_B=(shown.labels_B + 1) % CLASSES)
    assert attack.count_successes(network, wrong, make_attack(eps=1e-6), 0).successes == COUNT


def test_attacks_are_a_function_of_their_seed() -> None:
    network = Rugged()
    shown = make_model(network)
    starts = [attack.draw_start(shown, make_attack("pgd", seed=s), 0, 0) for s in (0, 0, 1)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    other_part = attack.draw_start(shown, make_attack("pgd"), 100, 0)
    assert not torch.equal(starts[0], other_part)


def test_an_image_without_a_gradient_is_counted() -> None:
    def constant(images_BCHW: Tensor) -> NetworkOutput:
        return NetworkOutput(0 * images_BCHW.flatten(1)[:, :CLASSES])

    shown = replace(make_model(Linear()), labels_B=torch.zeros(COUNT, dtype=torch.int64))
    assert attack.count_successes(constant, shown, make_attack(), 0) == AttackCount(0, COUNT, COUNT)


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (lambda x: NetworkOutput(x), [0.5, 2.0]),
        (lambda x: NetworkOutput(x, pose_BJD=x[..., None], logits_BN=7 * x), [3.5, 14.0]),
    ],
)
def test_logits_are_the_networks_own(
    output: Callable[[Tensor], NetworkOutput], wanted: list[float]
) -> None:
    assert attack.find_logits(output(torch.tensor([[0.5, 2.0]]))).tolist() == [wanted]
