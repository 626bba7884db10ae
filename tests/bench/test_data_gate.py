"""The data benchmark measures only what makes the same kind of image."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from capsweep.bench import data, noise, per_sample
from capsweep.bench.parity import ParityError

SHIFTED = per_sample.shifting(data.SHIFT)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rolled(image_CHW: Tensor) -> Tensor:
    """What leaves comes in again on the other side."""
    down, right = torch.randint(-data.SHIFT, data.SHIFT + 1, (2,)).tolist()
    return image_CHW.roll((down, right), dims=(1, 2)).float() / 255


def only_rows(image_CHW: Tensor) -> Tensor:
    """Moved up and down alone."""
    down = int(torch.randint(2 * data.SHIFT + 1, ()))
    padded_CHW = torch.nn.functional.pad(image_CHW, [0, 0, data.SHIFT, data.SHIFT])
    return padded_CHW[:, down : down + noise.SIDE].float() / 255


def test_both_augmentations_make_the_shifts_of_their_images() -> None:
    data.gate()


def test_the_gate_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    data.gate()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        (per_sample.shifting(data.SHIFT + 1), "are no shifts of theirs by up to 2"),
        (rolled, "are no shifts of theirs"),
        (lambda image_CHW: SHIFTED(image_CHW).flip(2), "are no shifts of theirs"),
        (lambda image_CHW: SHIFTED(image_CHW) * 255, "are no shifts of theirs"),
        (lambda image_CHW: SHIFTED(image_CHW).double(), "torch.float64"),
        (per_sample.shifting(data.SHIFT - 1), "only 9 of 25 shifts"),
        (only_rows, "only 5 of 25 shifts"),
    ],
)
def test_the_gate_refuses_another_augmentation(transform: per_sample.Transform, told: str) -> None:
    with pytest.raises(ParityError, match=f"torchvision: .*{told}"):
        data.gate(transform)


@pytest.mark.parametrize("spoilt", ["", "images_BCHW", "digits_BLCHW"])
def test_pairs_that_are_not_their_digits_added_are_refused(spoilt: str) -> None:
    made = noise.pair_source(data.GATE_EXAMPLES).compose(torch.arange(5))
    if not spoilt:
        data.composition_gate(made)
        return
    wrong = getattr(made, spoilt).clone()
    wrong[3] ^= 1
    with pytest.raises(ParityError, match="example 3"):
        data.composition_gate(made._replace(**{spoilt: wrong}))
