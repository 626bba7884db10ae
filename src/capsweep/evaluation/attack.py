"""White-box attacks within a ball of the largest norm: FGSM, BIM and PGD with random restarts.

    x_0 = x, for PGD x + uniform(-eps, eps)
    x_k = clip(x_{k-1} + step sign(d loss / d x_{k-1}))     into the ball, then into the bounds

The loss is the cross-entropy of logits; it is raised for the true class (untargeted), or lowered
for each of the other classes in turn (targeted). The last x_k counts, and the attacker may leave an
image alone. Goodfellow et al. 2015 (FGSM), Kurakin et al. 2017 (BIM), Madry et al. 2018 (PGD).

Shape letters: B batch, N classes, C H W image.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.data.randomness import generator_of
from capsweep.errors import UserError
from capsweep.evaluation.surface import Surface
from capsweep.model.capsules import NetworkOutput

METHODS = ("fgsm", "bim", "pgd")
LENGTH_EPS = 1e-6  # lengths nearer to 0 or 1 count as that far away, or their logit were infinite
PGD_REACH = 2.5  # steps of PGD together, in eps: from any place of the ball to any other

Network = Callable[[Tensor], NetworkOutput]


@dataclass(frozen=True)
class Attack:
    """One method and its budget. steps, restarts: 1 for methods that take no more."""

    method: str
    eps: float
    targeted: bool
    steps: int
    restarts: int
    seed: int

    @property
    def step(self) -> float:
        """By how much each value moves in a step."""
        return (PGD_REACH if self.method == "pgd" else 1.0) * self.eps / self.steps


@dataclass(frozen=True)
class Aim:
    """classes_B: to be the answer where it is a target, else not to be."""

    classes_B: Tensor
    is_target: bool

    def reached(self, scores_BN: Tensor) -> Tensor:
        """[B]: whether the highest score says so."""
        return (scores_BN.argmax(dim=1) == self.classes_B) == self.is_target

    def select(self, index_B: Tensor) -> "Aim":
        """For some of the examples."""
        return Aim(self.classes_B[index_B], self.is_target)


@dataclass(frozen=True)
class Count:
    """successes of `tries`: of examples, or of pairs of an example and another class.

    flat: examples for which the loss has no gradient at all, so that no sign says where to go.
    """

    successes: int
    tries: int
    flat: int

    def __add__(self, other: "Count") -> "Count":
        return Count(
            self.successes + other.successes, self.tries + other.tries, self.flat + other.flat
        )

    @property
    def rate(self) -> float:
        """Successes as a fraction."""
        return self.successes / self.tries


def make(method: str, eps: float, targeted: bool, steps: int, restarts: int, seed: int) -> Attack:
    """An attack. Raises UserError naming the option that cannot be meant."""
    if method not in METHODS:
        raise UserError(f"--method must be of {', '.join(METHODS)}, got {method}")
    if not 0 < eps < float("inf"):
        raise UserError(f"--eps must be above 0, got {eps:g}; clean accuracy is always told")
    for option, value in (("--steps", steps), ("--restarts", restarts)):
        if value < 1:
            raise UserError(f"{option} must be >= 1, got {value}")
    steps = 1 if method == "fgsm" else steps
    return Attack(method, eps, targeted, steps, restarts if method == "pgd" else 1, seed)


def logits(output: NetworkOutput) -> Tensor:
    """Scores [B, N] that do not saturate: their own, or the logit of a capsule's length."""
    if output.logits_BN is not None:
        return output.logits_BN.float()
    if output.pose_BJD is None:
        return output.scores_BN.float()
    return torch.special.logit(output.scores_BN.float(), eps=LENGTH_EPS)


def count(network: Network, surface: Surface, attack: Attack, first: int) -> Count:
    """How often an attack succeeds on some examples, of which `first` is the first one's place."""
    scores_BN = _scores(network, surface, surface.images_BCHW)
    starts = [start(surface, attack, first, restart) for restart in range(attack.restarts)]
    successes, tries, flat = 0, 0, 0
    for aim in _aims(surface.labels_B, scores_BN.shape[1], attack.targeted):
        reached_B = aim.reached(scores_BN)
        ahead_BCHW = ascent(network, surface, surface.images_BCHW, aim)
        flat += int((ahead_BCHW == 0).flatten(1).all(dim=1).sum())
        for start_BCHW in starts:
            left_B = (~reached_B).nonzero().flatten()
            if len(left_B) == 0:
                break
            rest, rest_aim = surface.select(left_B), aim.select(left_B)
            moved_BCHW = perturb(network, rest, attack, start_BCHW[left_B], rest_aim)
            reached_B[left_B] = rest_aim.reached(_scores(network, rest, moved_BCHW))
        successes += int(reached_B.sum())
        tries += len(reached_B)
    return Count(successes, tries, flat)


def perturb(
    network: Network, surface: Surface, attack: Attack, start_BCHW: Tensor, aim: Aim
) -> Tensor:
    """Images [B, C, H, W] after all steps from a start within the ball."""
    moved_BCHW = start_BCHW
    for _ in range(attack.steps):
        ahead_BCHW = ascent(network, surface, moved_BCHW, aim).sign()
        moved_BCHW = surface.bounded(moved_BCHW + attack.step * ahead_BCHW, attack.eps)
    return moved_BCHW


def ascent(network: Network, surface: Surface, images_BCHW: Tensor, aim: Aim) -> Tensor:
    """Where to go from images [B, C, H, W]: up the loss of a true class, down that of a target."""
    images_BCHW = images_BCHW.detach().requires_grad_()
    with torch.enable_grad():
        logit_BN = logits(network(surface.shown(images_BCHW)))
        # A sum: no image's gradient depends on how many others there are.
        loss = F.cross_entropy(logit_BN, aim.classes_B, reduction="sum")
        (gradient_BCHW,) = torch.autograd.grad(loss, images_BCHW)
    return -gradient_BCHW if aim.is_target else gradient_BCHW


def _aims(labels_B: Tensor, num_classes: int, targeted: bool) -> Iterator[Aim]:
    """One for each other class where a class is aimed at."""
    if not targeted:
        yield Aim(labels_B, False)
        return
    for further in range(1, num_classes):
        yield Aim((labels_B + further) % num_classes, True)


def start(surface: Surface, attack: Attack, first: int, restart: int) -> Tensor:
    """A function of (seed, restart, place): more restarts are those of fewer, and others."""
    if attack.method != "pgd":
        return surface.images_BCHW
    shape, device = surface.images_BCHW.shape, surface.images_BCHW.device
    generator = generator_of(attack.seed, "attack", restart, first)
    uniform_BCHW = (2 * torch.rand(shape, generator=generator) - 1).to(device)
    return surface.bounded(surface.images_BCHW + attack.eps * uniform_BCHW, attack.eps)


def _scores(network: Network, surface: Surface, images_BCHW: Tensor) -> Tensor:
    with torch.no_grad():
        return network(surface.shown(images_BCHW)).scores_BN.float()
