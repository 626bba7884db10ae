"""White-box attacks within a ball of the largest norm: FGSM, BIM and PGD with random restarts.

    x_0 = x, for PGD x + uniform(-eps, eps)
    x_k = clip(x_{k-1} + step sign(d loss / d x_{k-1}))     into the ball, then into the bounds

The loss is the cross-entropy of logits; it is raised for the true class (untargeted), or lowered
for each of the other classes in turn (targeted). The last x_k counts, and the attacker may leave an
image alone. Goodfellow et al. 2015 (FGSM), Kurakin et al. 2017 (BIM), Madry et al. 2018 (PGD).

Shape letters: B batch, N classes, C H W image.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.config import code_identity
from capsweep.data.batches import generator_of
from capsweep.data.image_batches import CroppedImages, ShiftedImages, compute_moments
from capsweep.errors import UserError
from capsweep.lab.evaluation.checkpoint import TrainedCell, split_range, verify_predictions
from capsweep.ledger.ledger import Predictions
from capsweep.model.capsules import NetworkOutput

LENGTH_EPS = 1e-6  # lengths nearer to 0 or 1 count as that far away, or their logit were infinite
PGD_REACH = 2.5  # steps of PGD together, in eps: from any place of the ball to any other
BATCH = 100  # examples attacked together; random starts are drawn for each batch
EPS_SCALE = "input"  # in files of attacks: eps is in units of the network's input
UNIT, OWN, NONE = "[0, 1]", "each image's own of 0..255, standardised as it was", "none"

Network = Callable[[Tensor], NetworkOutput]


@dataclass(frozen=True)
class ThreatModel:
    """Images [B, C, H, W] that an attack starts from; low, high: bounds that broadcast to them;
    bounds: the same in words.
    """

    images_BCHW: Tensor
    labels_B: Tensor
    low: Tensor
    high: Tensor
    bounds: str

    def select_images(self, index_B: Tensor) -> "ThreatModel":
        """The same of some of the examples."""
        names = ("images_BCHW", "labels_B", "low", "high")
        return replace(self, **{name: getattr(self, name)[index_B] for name in names})

    def clip_images(self, images_BCHW: Tensor, eps: float) -> Tensor:
        """Images brought into the ball around those of the model, then within the bounds."""
        lowest = (self.images_BCHW - eps).maximum(self.low)
        return images_BCHW.clamp(lowest, (self.images_BCHW + eps).minimum(self.high))


def make_threat_model(cell: TrainedCell, part: slice) -> ThreatModel:
    """The threat model of some test examples of a cell: the network's input is changed.

    Raises UserError for examples of several classes.
    """
    test, infinity = cell.test, float("inf")
    images_BCHW, labels_B = test.evaluation_batch(part)[:2]
    if labels_B.dim() > 1:
        raise UserError(
            f"{cell.name}: attacks need one class per image, and this data set shows several"
        )
    ends, bounds = (-infinity, infinity), NONE
    if isinstance(test, (ShiftedImages, CroppedImages)):
        ends, bounds = (0.0, 1.0), UNIT
    low, high = (images_BCHW.new_full((len(images_BCHW), 1, 1, 1), end) for end in ends)
    if isinstance(test, CroppedImages) and test.standardise:
        mean_B1, deviation_B1 = compute_moments(test.crop_pixels(part).float())
        low, high = (((end - mean_B1) / deviation_B1)[..., None, None] for end in (0, 255))
        bounds = OWN
    return ThreatModel(images_BCHW, labels_B, low, high, bounds)


@dataclass(frozen=True)
class Attack:
    """One method and its budget. steps, restarts: 1 for methods that take no more."""

    method: str
    eps: float
    targeted: bool
    steps: int
    restarts: int
    seed: int = 0

    @property
    def step(self) -> float:
        """Return by how much each value moves in a step."""
        return (PGD_REACH if self.method == "pgd" else 1.0) * self.eps / self.steps

    @property
    def aim_name(self) -> str:
        """Return what the attack aims at, as tables and file names say it."""
        return "targeted" if self.targeted else "untargeted"

    @property
    def rate(self) -> str:
        """Return the key of the fraction that a content has of the attack."""
        return "success_rate" if self.targeted else "accuracy"


def make_attack(method: str, eps: float, targeted: bool, steps: int, restarts: int) -> Attack:
    """Return an attack, with as many steps and restarts as its method takes."""
    steps, restarts = 1 if method == "fgsm" else steps, restarts if method == "pgd" else 1
    return Attack(method, eps, targeted, steps, restarts)


class AttackCount(NamedTuple):
    """successes of `tries`: of examples, or of pairs of an example and another class.

    flat: examples for which the loss has no gradient at all, so that no sign says where to go.
    """

    successes: int
    tries: int
    flat: int


def attack_cell(
    cell: TrainedCell,
    stored: Predictions,
    attacks: Mapping[str, Sequence[Attack]],
    examples: int | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of a file in `evals/` for each method: counts of its attacks, and the
    accuracy that is left, or the rate of success of targeted ones.

    attacks: by method; the cell's seed is theirs. examples: the first so many; None: all that the
    cell was tested on. Raises UserError naming the cell, also where its network, of unchanged
    images, does not say what its test stored.
    """
    retest = verify_predictions(cell, stored, examples)
    parts = list(split_range(retest.examples, BATCH))  # their images are made one after another
    bounds = make_threat_model(cell, parts[0]).bounds
    for method, of_method in attacks.items():
        seeded = [replace(attack, seed=cell.config["seed"]) for attack in of_method]
        results = []
        for attack in seeded:
            counts = [
                count_successes(cell, make_threat_model(cell, part), attack, part.start)
                for part in parts
            ]
            count = AttackCount(*map(sum, zip(*counts, strict=True)))
            successes = count.successes if attack.targeted else count.tries - count.successes
            result = {**asdict(attack), "step": attack.step, **count._asdict()}
            results.append(result | {attack.rate: successes / count.tries})
        aim = seeded[0].aim_name
        settings = [[asdict(attack) for attack in seeded], EPS_SCALE, retest.examples]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
        content = {
            "method": method,
            "aim": aim,
            "eps_scale": EPS_SCALE,
            "bounds": bounds,
            "examples": retest.examples,
            "clean_accuracy": (retest.examples - retest.wrong) / retest.examples,
            "ties": retest.ties,
            "attacks": results,
            "device": str(cell.test.device),
            "code": code_identity.hash_package(),
        }
        yield f"attack-{method}-{aim}-{digest}.json", content


class Aim(NamedTuple):
    """classes_B: to be the answer where it is a target, else not to be."""

    classes_B: Tensor
    is_target: bool

    def is_reached(self, scores_BN: Tensor) -> Tensor:
        """[B]: whether the highest score says so."""
        return (scores_BN.argmax(dim=1) == self.classes_B) == self.is_target


def count_successes(
    network: Network, model: ThreatModel, attack: Attack, first: int
) -> AttackCount:
    """How often an attack succeeds on some examples, of which `first` is the first one's place."""
    scores_BN = _predict_scores(network, model.images_BCHW)
    starts = [draw_start(model, attack, first, restart) for restart in range(attack.restarts)]
    successes, tries, flat = 0, 0, 0
    for aim in _list_aims(model.labels_B, scores_BN.shape[1], attack.targeted):
        reached_B = aim.is_reached(scores_BN)
        ascent_BCHW = find_ascent(network, model.images_BCHW, aim)
        flat += int((ascent_BCHW == 0).flatten(1).all(dim=1).sum())
        for start_BCHW in starts:
            left_B = (~reached_B).nonzero().flatten()
            if len(left_B) == 0:
                break
            rest, rest_aim = model.select_images(left_B), Aim(aim.classes_B[left_B], aim.is_target)
            moved_BCHW = perturb_images(network, rest, attack, start_BCHW[left_B], rest_aim)
            reached_B[left_B] = rest_aim.is_reached(_predict_scores(network, moved_BCHW))
        successes += int(reached_B.sum())
        tries += len(reached_B)
    return AttackCount(successes, tries, flat)


def _list_aims(labels_B: Tensor, num_classes: int, targeted: bool) -> list[Aim]:
    """One for each other class where a class is aimed at."""
    if not targeted:
        return [Aim(labels_B, False)]
    return [Aim((labels_B + further) % num_classes, True) for further in range(1, num_classes)]


def draw_start(model: ThreatModel, attack: Attack, first: int, restart: int) -> Tensor:
    """A function of (seed, restart, place): more restarts are those of fewer, and others."""
    if attack.method != "pgd":
        return model.images_BCHW
    shape, device = model.images_BCHW.shape, model.images_BCHW.device
    generator = generator_of(attack.seed, "attack", restart, first)
    uniform_BCHW = (2 * torch.rand(shape, generator=generator) - 1).to(device)
    return model.clip_images(model.images_BCHW + attack.eps * uniform_BCHW, attack.eps)


def perturb_images(
    network: Network, model: ThreatModel, attack: Attack, start_BCHW: Tensor, aim: Aim
) -> Tensor:
    """Images [B, C, H, W] after all steps from a start within the ball."""
    moved_BCHW = start_BCHW
    for _ in range(attack.steps):
        sign_BCHW = find_ascent(network, moved_BCHW, aim).sign()
        moved_BCHW = model.clip_images(moved_BCHW + attack.step * sign_BCHW, attack.eps)
    return moved_BCHW


def find_ascent(network: Network, images_BCHW: Tensor, aim: Aim) -> Tensor:
    """Where to go from images [B, C, H, W]: up the loss of a true class, down that of a target."""
    images_BCHW = images_BCHW.detach().requires_grad_()
    with torch.enable_grad():
        logit_BN = find_logits(network(images_BCHW))
        # A sum: no image's gradient depends on how many others there are.
        loss = F.cross_entropy(logit_BN, aim.classes_B, reduction="sum")
        (gradient_BCHW,) = torch.autograd.grad(loss, images_BCHW)
    return -gradient_BCHW if aim.is_target else gradient_BCHW


def find_logits(output: NetworkOutput) -> Tensor:
    """Scores [B, N] that do not saturate: their own, or the logit of a capsule's length."""
    if output.logits_BN is not None:
        return output.logits_BN.float()
    if output.pose_BJD is None:
        return output.scores_BN.float()
    return torch.special.logit(output.scores_BN.float(), eps=LENGTH_EPS)


def _predict_scores(network: Network, images_BCHW: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images_BCHW).scores_BN.float()
