"""Attacks where the optimum is known: a linear network, whose loss rises towards the corners; and
what an attack may change of plain and of standardised images.
"""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor, nn
from trained_cells import NOT_TESTED

from capsweep.data.batches import Batch, EvaluatedSplit
from capsweep.data.image_batches import CroppedImages, ShiftedImages
from capsweep.data.images import LabelledImages
from capsweep.errors import UserError
from capsweep.lab.evaluation import attack
from capsweep.lab.evaluation.attack import (
    PIXEL_RANGE,
    UNIT_RANGE,
    Attack,
    AttackCount,
    ThreatModel,
    make_threat_model,
)
from capsweep.lab.evaluation.checkpoint import TrainedCell
from capsweep.model.capsules import NetworkOutput

CLASSES, SIDE, COUNT = 4, 5, 12
METHODS = ("fgsm", "bim", "pgd")
ALL = slice(0, 6)


class Linear(nn.Module):
    """Logits that are a linear function of the pixels."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight_NE = torch.randn((classes, SIDE * SIDE), generator=generator)

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        return NetworkOutput(images_BCHW.flatten(1) @ self.weight_NE.T)


def make_model(network: nn.Module, low: float = -torch.inf, high: float = torch.inf) -> ThreatModel:
    """Images between 0 and 1, of the classes that the network sees in them."""
    generator = torch.Generator().manual_seed(1)
    images_BCHW = torch.rand((COUNT, 1, SIDE, SIDE), generator=generator)
    labels_B = network(images_BCHW).scores_BN.argmax(dim=1)
    low_B111, high_B111 = (torch.full((COUNT, 1, 1, 1), bound) for bound in (low, high))
    return ThreatModel(images_BCHW, labels_B, low_B111, high_B111, "")


def make_attack(method: str = "fgsm", eps: float = 0.1, **changed: int) -> Attack:
    options = Namespace(**{"steps": 10, "restarts": 3, "targeted": False, **changed})
    return attack.make_attack(method, eps, options, seed=0)


@pytest.mark.parametrize("method", METHODS)
def test_two_linear_logits_move_by_eps_times_the_norm_of_their_difference(method: str) -> None:
    network = Linear(classes=2)
    model = make_model(network)
    weight_NE = network.weight_NE
    towards_BE = torch.sign(weight_NE[1 - model.classes_B] - weight_NE[model.classes_B])
    for aimed in (model, replace(model, classes_B=1 - model.classes_B, targeted=True)):
        one = make_attack(method, 0.05)
        moved = attack.perturb_images(network, aimed, one, model.images_BCHW)
        moved_BE = (moved - model.images_BCHW).flatten(1)
        torch.testing.assert_close(moved_BE, 0.05 * towards_BE, atol=1e-6, rtol=0)
    logit_BN = network(model.images_BCHW).scores_BN
    margin_B = (logit_BN[:, 0] - logit_BN[:, 1]).abs() / (weight_NE[0] - weight_NE[1]).abs().sum()
    for eps in (0.01, 0.05, 0.1):
        (count,) = attack.count_successes([network], model, make_attack(method, eps), first=0)
        assert count == AttackCount(int((margin_B < eps).sum()), COUNT, 0)
    assert 0 < int((margin_B < 0.05).sum()) < COUNT


@at_most_examples(30)
@given(st.sampled_from(METHODS), st.floats(0.01, 0.6), st.integers(1, 12), st.booleans())
def test_images_stay_in_the_ball_and_within_the_bounds(
    method: str, eps: float, steps: int, is_target: bool
) -> None:
    network = Linear()
    model = replace(make_model(network, 0.0, 1.0), targeted=is_target)
    one = make_attack(method, eps, steps=steps)
    start = attack.draw_start(model, one, first=0, restart=0)
    for images in (start, attack.perturb_images(network, model, one, start)):
        assert float((images - model.images_BCHW).abs().max()) <= eps + 1e-6
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
    model = make_model(network)
    attacks = [
        make_attack("pgd", eps, steps=1, restarts=n, targeted=targeted) for n in (1, 2, 4, 8)
    ]
    counts = [attack.count_successes([network], model, one, 0) for one in attacks]
    successes = [count.successes for (count,) in counts]
    assert successes == sorted(successes)
    assert successes[0] < successes[-1]


def test_images_that_are_wrong_already_and_those_without_a_gradient_are_counted() -> None:
    network = Linear()
    model = make_model(network)
    wrong = replace(model, classes_B=(model.classes_B + 1) % CLASSES)
    (count,) = attack.count_successes([network], wrong, make_attack(eps=1e-6), 0)
    assert count.successes == COUNT

    def constant(images_BCHW: Tensor) -> NetworkOutput:
        return NetworkOutput(0 * images_BCHW.flatten(1)[:, :CLASSES])

    first = replace(model, classes_B=torch.zeros(COUNT, dtype=torch.int64))
    (count,) = attack.count_successes([constant], first, make_attack(), 0)
    assert count == AttackCount(0, COUNT, COUNT)


@pytest.mark.parametrize(("targeted", "eps"), [(False, 0.004), (True, 0.03)])
@pytest.mark.parametrize("method", METHODS)
def test_images_tried_on_the_network_that_made_them_give_its_own_numbers(
    method: str, targeted: bool, eps: float
) -> None:
    """And an image succeeds where it is wrong already, or where any start succeeds."""
    network = Rugged()
    model = make_model(network)
    wrong_B = torch.arange(COUNT) < 3
    model = replace(model, classes_B=(model.classes_B + wrong_B) % CLASSES)
    one = make_attack(method, eps, targeted=targeted)
    (alone,) = attack.count_successes([network], model, one, 0)
    assert attack.count_successes([network] * 3, model, one, 0) == [alone] * 3
    expected = 0
    for further in range(1, CLASSES) if targeted else [0]:
        classes_B = (model.classes_B + further) % CLASSES
        aimed = replace(model, classes_B=classes_B, targeted=targeted)
        starts = [attack.draw_start(model, one, 0, restart) for restart in range(one.restarts)]
        moved = [attack.perturb_images(network, aimed, one, start) for start in starts]
        tried = [aimed.is_reached(network(x).scores_BN) for x in (model.images_BCHW, *moved)]
        expected += int(torch.stack(tried).any(dim=0).sum())
    assert alone.successes == expected
    assert 0 < alone.successes < alone.tries


class Masked(Linear):
    """The same classes, from logits so large that the cross-entropy has no gradient in float32."""

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        return NetworkOutput(1e5 * super().forward(images_BCHW).scores_BN)


@pytest.mark.parametrize("method", METHODS)
def test_images_made_elsewhere_fool_a_network_that_masks_its_gradients(method: str) -> None:
    plain, masked = Linear(), Masked()
    model, one = make_model(plain), make_attack(method, 0.1)
    own, back = attack.count_successes([masked, plain], model, one, 0)
    white_box, transferred = attack.count_successes([plain, masked], model, one, 0)
    assert (own.flat, white_box.flat) == (COUNT, 0)
    assert own.successes < transferred.successes == white_box.successes
    assert back.successes == own.successes  # its images are as harmless on the other


@pytest.fixture
def examples() -> LabelledImages:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 2, 9, 9), generator=generator, dtype=torch.uint8)
    return LabelledImages(images, torch.arange(6))


def threaten(test: EvaluatedSplit) -> ThreatModel:
    return make_threat_model(
        TrainedCell("cell", {}, nn.Identity(), test, NOT_TESTED, test, (1, SIDE, SIDE)), ALL
    )


def crop_images(examples: LabelledImages, standardise: bool) -> CroppedImages:
    still = {"flip": False, "brightness": 0.0, "contrast": [1.0, 1.0], "mean_over": "crop"}
    return CroppedImages(examples, "test", crop=6, standardise=standardise, **still)


def test_plain_images_are_changed_within_0_and_1(examples: LabelledImages) -> None:
    for test in (ShiftedImages(examples, "test", 1), crop_images(examples, standardise=False)):
        model = threaten(test)
        assert torch.equal(model.images_BCHW, test.evaluation_batch(ALL).images_BCHW)
        far = model.clip_images(model.images_BCHW + 9, 5)
        assert float(far.min()) == float(far.max()) == 1
        assert model.bounds == UNIT_RANGE


def test_standardised_images_are_changed_within_their_own_range(examples: LabelledImages) -> None:
    test = crop_images(examples, standardise=True)
    model = threaten(test)
    assert torch.equal(model.images_BCHW, test.evaluation_batch(ALL).images_BCHW)
    assert model.bounds == PIXEL_RANGE
    pixels = test.crop_pixels(ALL).double().flatten(1)
    white = (255 - pixels.mean(dim=1)) / pixels.std(dim=1, correction=0)
    brightest = model.clip_images(model.images_BCHW + 99, 99).flatten(1)
    torch.testing.assert_close(brightest.amax(dim=1).double(), white, atol=1e-5, rtol=0)
    assert torch.equal(brightest.amax(dim=1), brightest.amin(dim=1))
    some = model.select_images(torch.tensor([4, 1]))
    assert some.classes_B.tolist() == [4, 1]
    assert torch.equal(some.high, model.high[[4, 1]])


def test_examples_of_several_classes_are_refused(examples: LabelledImages) -> None:
    class Several(ShiftedImages):
        def evaluation_batch(self, part: slice) -> Batch:
            return super().evaluation_batch(part)._replace(labels=torch.zeros((6, 2)))

    with pytest.raises(UserError, match="cell: attacks need one class per image"):
        threaten(Several(examples, "test", 1))
