"""Attacks within a ball of the maximum norm: FGSM, BIM and PGD with random restarts.

    x_0 = x                             for FGSM and BIM
    x_0 = x + uniform(-eps, eps)        for PGD
    x_k = clip(x_{k-1} + step sign(d loss / d x_{k-1}))

All x_k are clipped to the ball |x_k - x| <= eps and to the bounds of the data. The loss is the
cross-entropy of the logits. An untargeted attack raises the loss of the true class. A targeted
attack lowers the loss of a wanted class, with a minus sign before `step`. Each class other than the
true class is the wanted class in turn. Of the x_k only the last is tested. An attack also succeeds
if the unchanged image already reaches its aim. Sources: Goodfellow et al. 2015 (FGSM), Kurakin et
al. 2017 (BIM), Madry et al. 2018 (PGD).

The gradients are those of one network. The changed images are tried on this network (a white-box
attack) and on others (a transfer attack; Papernot et al. 2016).

Shape letters: B batch, N classes, C H W image.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.data.batches import generator_of
from capsweep.data.image_batches import CroppedImages, ShiftedImages, compute_moments
from capsweep.errors import UserError
from capsweep.lab.evaluation.checkpoint import TrainedCell, split_range
from capsweep.model.capsules import NetworkOutput

LENGTH_EPS = 1e-6  # keeps lengths this far from 0 and 1, so that logits are finite
PGD_REACH = 2.5  # sum of PGD's steps, in units of eps; enough to cross the ball
BATCH = 100  # examples in a batch; random starts are drawn for each batch
UNIT_RANGE, PIXEL_RANGE, UNBOUNDED = "[0, 1]", "0 to 255 before standardisation", "none"

Network = Callable[[Tensor], NetworkOutput]


@dataclass(frozen=True)
class Attack:
    """An attack method with its budget.

    Attributes:
        method: `fgsm` (one step), `bim` (several steps), or `pgd` (several steps from random
            starts).
        eps: Largest change of an input value.
        targeted: Whether the attacker wants a certain wrong class. Otherwise any wrong class is a
            success.
        steps: Number of gradient steps; 1 for FGSM.
        restarts: Number of starts; 1 for FGSM and BIM.
        seed: Seed of the random starts.
    """

    method: str
    eps: float
    targeted: bool
    steps: int
    restarts: int
    seed: int

    @property
    def step(self) -> float:
        """The size of the change of each input value in one step, before clipping."""
        return (PGD_REACH if self.method == "pgd" else 1.0) * self.eps / self.steps


@dataclass(frozen=True)
class ThreatModel:
    """The rules of an attack on some images: the bounds of changed values, and the aim.

    Attributes:
        images_BCHW: The unchanged images.
        classes_B: In a targeted attack, the wanted classes. Otherwise the true classes.
        low: Lower bound of changed values, in a shape that broadcasts to the images.
        high: Upper bound of changed values, in a shape that broadcasts to the images.
        bounds: The two bounds in words.
        targeted: Whether `classes_B` are wanted classes.
    """

    images_BCHW: Tensor
    classes_B: Tensor
    low: Tensor
    high: Tensor
    bounds: str
    targeted: bool = False

    def select_images(self, index_B: Tensor) -> "ThreatModel":
        """Return a threat model with only the images at the given indices."""
        names = ("images_BCHW", "classes_B", "low", "high")
        return replace(self, **{name: getattr(self, name)[index_B] for name in names})

    def clip_images(self, images_BCHW: Tensor, eps: float) -> Tensor:
        """Clip values to at most `eps` from the unchanged values, and to `low` and `high`."""
        lowest = (self.images_BCHW - eps).maximum(self.low)
        return images_BCHW.clamp(lowest, (self.images_BCHW + eps).minimum(self.high))

    def is_reached(self, scores_BN: Tensor) -> Tensor:
        """Return for each image [B] whether the attack succeeds with these scores.

        A targeted attack succeeds if the wanted class has the highest score. An untargeted attack
        succeeds if another class than the true class has the highest score.
        """
        return (scores_BN.argmax(dim=1) == self.classes_B) == self.targeted


def make_threat_model(cell: TrainedCell, part: slice) -> ThreatModel:
    """Return the threat model of an untargeted attack on some test examples of a cell.

    The attacker changes the input of the network. If the data set standardises images, this input
    is a standardised image.

    Args:
        cell: The trained cell.
        part: Slice of the test examples.

    Raises:
        UserError: The images of the data set show several classes.
    """
    test, infinity = cell.test, float("inf")
    images_BCHW, labels_B = test.evaluation_batch(part)[:2]
    if labels_B.dim() > 1:
        raise UserError(
            f"{cell.name}: attacks need one class per image, and this data set shows several"
        )
    ends, bounds = (-infinity, infinity), UNBOUNDED
    if isinstance(test, (ShiftedImages, CroppedImages)):
        ends, bounds = (0.0, 1.0), UNIT_RANGE
    low, high = (images_BCHW.new_full((len(images_BCHW), 1, 1, 1), end) for end in ends)
    if isinstance(test, CroppedImages) and test.standardise:
        mean_B1, deviation_B1 = compute_moments(test.crop_pixels(part).float())
        low, high = (((end - mean_B1) / deviation_B1)[..., None, None] for end in (0, 255))
        bounds = PIXEL_RANGE
    return ThreatModel(images_BCHW, labels_B, low, high, bounds)


class AttackCount(NamedTuple):
    """How often an attack succeeded.

    A try is an attack on one image, with all its restarts. In a targeted attack, each try has one
    wanted class.

    Attributes:
        successes: Number of successful tries.
        tries: Number of tries.
        flat: Number of tries in which the gradient of the attacked network's loss is 0 at the
            unchanged image. There, a step has no direction.
    """

    successes: int
    tries: int
    flat: int


def make_attack(method: str, eps: float, options: Namespace, seed: int) -> Attack:
    """Return the attack for some options. FGSM has one step, and only PGD has several starts."""
    steps = 1 if method == "fgsm" else options.steps
    restarts = options.restarts if method == "pgd" else 1
    return Attack(method, eps, options.targeted, steps, restarts, seed)


def measure_attack(
    networks: Sequence[TrainedCell], attack: Attack, examples: int
) -> list[dict[str, Any]]:
    """Attack the first of some cells in batches, and try the changed images on all of them.

    Returns:
        For each cell: budget, counts and rate as data for JSON.
    """
    counts = [
        count_successes(networks, make_threat_model(networks[0], part), attack, part.start)
        for part in split_range(examples, BATCH)
    ]
    results = []
    for of_network in zip(*counts, strict=True):
        count = AttackCount(*map(sum, zip(*of_network, strict=True)))
        rate = {"accuracy": (count.tries - count.successes) / count.tries}
        if attack.targeted:
            rate = {"success_rate": count.successes / count.tries}
        results.append({**asdict(attack), "step": attack.step, **count._asdict(), **rate})
    return results


def count_successes(
    networks: Sequence[Network], model: ThreatModel, attack: Attack, first: int
) -> list[AttackCount]:
    """Count for each network how often an attack on the first of them succeeds on some examples.

    A try also succeeds if the unchanged image reaches the aim of the attack. A targeted attack is
    tried with each class other than the true class.

    Args:
        networks: Functions that compute the output of a network for images. The images are changed
            by gradients of the first.
        model: Threat model of the examples; `classes_B` has the true classes.
        attack: Attack method and budget.
        first: Index of the first of these examples in the test set. Random starts depend on this
            index.
    """
    clean = [_predict_scores(network, model.images_BCHW) for network in networks]
    starts = [draw_start(model, attack, first, restart) for restart in range(attack.restarts)]
    models, num_classes = [model], clean[0].shape[1]
    if attack.targeted:
        others = [(model.classes_B + further) % num_classes for further in range(1, num_classes)]
        models = [replace(model, classes_B=classes_B, targeted=True) for classes_B in others]
    successes, tries, flat = [0] * len(networks), 0, 0
    for aimed in models:
        ascent_BCHW = find_ascent(networks[0], aimed, aimed.images_BCHW)
        flat += int((ascent_BCHW == 0).flatten(1).all(dim=1).sum())
        changed_BCHW = craft_images(networks[0], aimed, attack, starts)
        for place, (network, clean_BN) in enumerate(zip(networks, clean, strict=True)):
            reached_B = aimed.is_reached(_predict_scores(network, changed_BCHW))
            successes[place] += int((reached_B | aimed.is_reached(clean_BN)).sum())
        tries += len(changed_BCHW)
    return [AttackCount(number, tries, flat) for number in successes]


def craft_images(
    network: Network, model: ThreatModel, attack: Attack, starts: Sequence[Tensor]
) -> Tensor:
    """Return the images [B, C, H, W] that an attack on a network makes, one for each example.

    It is the image from the first start that reaches the aim of the attack on this network. If no
    start does, it is the image from the last start.
    """
    changed_BCHW = torch.empty_like(model.images_BCHW)
    left_B = torch.arange(len(changed_BCHW), device=changed_BCHW.device)
    for start_BCHW in starts:
        rest = model.select_images(left_B)
        moved_BCHW = perturb_images(network, rest, attack, start_BCHW[left_B])
        changed_BCHW[left_B] = moved_BCHW
        left_B = left_B[~rest.is_reached(_predict_scores(network, moved_BCHW))]
        if len(left_B) == 0:
            break
    return changed_BCHW


def draw_start(model: ThreatModel, attack: Attack, first: int, restart: int) -> Tensor:
    """Return the images [B, C, H, W] from which an attack starts.

    PGD starts from random images in the ball; the other methods start from the unchanged images.
    The random numbers depend only on the seed of the attack, on `restart` (from 0) and on `first`.
    So an attack with more restarts also uses all starts of an attack with fewer restarts.
    """
    if attack.method != "pgd":
        return model.images_BCHW
    shape, device = model.images_BCHW.shape, model.images_BCHW.device
    generator = generator_of(attack.seed, "attack", restart, first)
    uniform_BCHW = (2 * torch.rand(shape, generator=generator) - 1).to(device)
    return model.clip_images(model.images_BCHW + attack.eps * uniform_BCHW, attack.eps)


def perturb_images(
    network: Network, model: ThreatModel, attack: Attack, start_BCHW: Tensor
) -> Tensor:
    """Apply all steps of an attack to start images, and return the images [B, C, H, W]."""
    moved_BCHW = start_BCHW
    for _ in range(attack.steps):
        sign_BCHW = find_ascent(network, model, moved_BCHW).sign()
        moved_BCHW = model.clip_images(moved_BCHW + attack.step * sign_BCHW, attack.eps)
    return moved_BCHW


def find_ascent(network: Network, model: ThreatModel, images_BCHW: Tensor) -> Tensor:
    """Return the direction [B, C, H, W] in which the attacker changes the images.

    In an untargeted attack, this is the gradient of the loss of the true classes. In a targeted
    attack, it is the negative gradient of the loss of the wanted classes.
    """
    images_BCHW = images_BCHW.detach().requires_grad_()
    with torch.enable_grad():
        logit_BN = find_logits(network(images_BCHW))
        # With a sum, the gradient of an image does not depend on the number of images.
        loss = F.cross_entropy(logit_BN, model.classes_B, reduction="sum")
        (gradient_BCHW,) = torch.autograd.grad(loss, images_BCHW)
    return -gradient_BCHW if model.targeted else gradient_BCHW


def find_logits(output: NetworkOutput) -> Tensor:
    """Return scores [B, N] that do not saturate.

    The result is the first of these that exists:

    - the logits of the network;
    - log(s / (1 - s)) of the scores s, if the network has class capsules;
    - the scores.
    """
    if output.logits_BN is not None:
        return output.logits_BN.float()
    if output.pose_BJD is None:
        return output.scores_BN.float()
    return torch.special.logit(output.scores_BN.float(), eps=LENGTH_EPS)


def _predict_scores(network: Network, images_BCHW: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images_BCHW).scores_BN.float()
