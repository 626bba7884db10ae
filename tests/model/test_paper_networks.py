"""The networks of "Dynamic Routing Between Capsules", each as its preset composes it."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from capsweep.config import compose
from capsweep.model.capsnet import CapsNet
from capsweep.training import build
from capsweep.training.size import Size, size

NO_BIAS = "routing.bias=false"
NO_DECODER = "loss.reconstruction.weight=0"
DECODER = "loss.reconstruction.weight=0.0005"


def _size(preset: str, *overrides: str) -> Size:
    return size(compose.cell([f"experiment=paper/{preset}", *overrides]).config)


def _parameters(preset: str, *overrides: str) -> int:
    return _size(preset, *overrides).parameters


# Issue 4's table of networks, and what it says of their variations.
PARAMETERS = {
    "mnist": 8_215_728,
    f"mnist {NO_BIAS}": 8_215_568,
    f"mnist {NO_DECODER}": 6_804_384,
    "multimnist": 11_361_968,
    "affnist": 13_475_808,
    "cifar10": 22_476_448,
    "smallnorb": 9_327_184,
    f"smallnorb {NO_DECODER}": 6_661_200,
    "svhn": 1_004_976,
    f"svhn {DECODER}": 4_720_560,
    "mnist_baseline": 35_445_522,
    "multimnist_baseline": 24_563_978,
}


@pytest.mark.parametrize(("line", "parameters"), PARAMETERS.items(), ids=PARAMETERS)
def test_number_of_parameters_is_that_of_the_paper(line: str, parameters: int) -> None:
    assert _parameters(*line.split()) == parameters


@dataclass(frozen=True)
class Sizes:
    """A CapsNet in the paper's words: an image of `pixels` squared and `colours`; a convolution of
    `channels`; `types` of primary capsules with `pose` numbers, at places squared; classes.
    """

    pixels: int
    colours: int
    places: int
    channels: int = 256
    types: int = 32
    pose: int = 8
    classes: int = 10
    class_pose: int = 16

    @property
    def children(self) -> int:
        """Primary capsules."""
        return self.types * self.places**2


# places: (pixels - 8 of the first convolution - 9) / 2 + 1; with SAME padding half the pixels.
CAPSNETS = {
    "mnist": Sizes(pixels=28, colours=1, places=6),
    "multimnist": Sizes(pixels=36, colours=1, places=10),
    "affnist": Sizes(pixels=40, colours=1, places=12),
    "cifar10": Sizes(pixels=24, colours=3, places=12, types=64),
    "smallnorb": Sizes(pixels=32, colours=2, places=8, classes=5),
    "svhn": Sizes(
        pixels=32, colours=3, places=8, channels=64, types=16, pose=6, classes=10, class_pose=8
    ),
}
every_capsnet = pytest.mark.parametrize(("preset", "sizes"), CAPSNETS.items(), ids=CAPSNETS)


def _without_decoder(s: Sizes) -> int:
    conv = 9 * 9 * s.colours * s.channels + s.channels
    primary = 9 * 9 * s.channels * (s.types * s.pose) + s.types * s.pose
    votes = s.children * s.classes * s.class_pose * s.pose
    bias = s.classes * s.class_pose
    return conv + primary + votes + bias


def _decoder_layers(s: Sizes) -> list[tuple[int, int]]:
    """Inputs and outputs: the whole image is drawn, every colour or view of it."""
    image = s.pixels**2 * s.colours
    return [(s.classes * s.class_pose, 512), (512, 1024), (1024, image)]


def _decoder(s: Sizes) -> int:
    return sum(inputs * outputs + outputs for inputs, outputs in _decoder_layers(s))


@every_capsnet
def test_parameters_are_the_sum_over_the_layers(preset: str, sizes: Sizes) -> None:
    assert _parameters(preset, NO_DECODER) == _without_decoder(sizes)
    assert _parameters(preset, DECODER) == _without_decoder(sizes) + _decoder(sizes)


@every_capsnet
def test_the_decoder_is_the_only_difference_that_reconstruction_makes(
    preset: str, sizes: Sizes
) -> None:
    assert _parameters(preset) - _without_decoder(sizes) in (0, _decoder(sizes))
    has_decoder = _parameters(preset) > _without_decoder(sizes)
    assert has_decoder == (preset not in ("cifar10", "svhn"))


@every_capsnet
def test_the_bias_is_a_number_for_each_class_and_pose(preset: str, sizes: Sizes) -> None:
    without = _parameters(preset, NO_BIAS)
    assert _parameters(preset) - without == sizes.classes * sizes.class_pose


@every_capsnet
def test_primary_capsules_stand_at_every_place(preset: str, sizes: Sizes) -> None:
    with torch.device("meta"):
        network = build.network(compose.cell([f"experiment=paper/{preset}"]).config)
    assert isinstance(network, CapsNet)
    children, parents, parent_pose, child_pose = network.classes.weight_IJDP.shape
    assert (children, child_pose) == (sizes.children, sizes.pose)
    assert (parents, parent_pose) == (sizes.classes, sizes.class_pose)


def test_cifar10_has_9216_primary_capsules_and_no_decoder() -> None:
    assert CAPSNETS["cifar10"].children == 64 * 12 * 12 == 9_216
    config = compose.cell(["experiment=paper/cifar10"]).config
    assert "decoder" not in config["model"]
    assert config["routing"]["none_of_the_above"] is True
    with torch.device("meta"):
        network = build.network(config)
        assert network.classes.weight_IJDP.shape[0] == 9_216
        assert network.conv(torch.empty(1, 3, 24, 24)).shape[2:] == (24, 24)


def test_none_of_the_above_is_no_parent_and_has_no_parameters() -> None:
    with_it, without = (
        _size("cifar10", f"routing.none_of_the_above={chosen}") for chosen in ("true", "false")
    )
    assert with_it == without


def test_multimnist_has_one_decoder_and_uses_it_for_each_digit() -> None:
    layers = _decoder_layers(CAPSNETS["multimnist"])
    one_pass = sum(2 * inputs * outputs for inputs, outputs in layers)
    whole, plain = _size("multimnist"), _size("multimnist", NO_DECODER)
    assert whole.parameters - plain.parameters == _decoder(CAPSNETS["multimnist"])
    assert whole.flops - plain.flops == 2 * one_pass


def test_mnist_uses_its_decoder_once() -> None:
    one_pass = sum(2 * inputs * outputs for inputs, outputs in _decoder_layers(CAPSNETS["mnist"]))
    assert _size("mnist").flops - _size("mnist", NO_DECODER).flops == one_pass


def _conv(inputs: int, outputs: int, kernel: int) -> int:
    return kernel * kernel * inputs * outputs + outputs


def _full(*widths: int) -> int:
    return sum(m * n + n for m, n in itertools.pairwise(widths))


def test_the_baseline_of_mnist_is_three_convolutions_and_two_hidden_layers() -> None:
    convolutions = _conv(1, 256, 5) + _conv(256, 256, 5) + _conv(256, 128, 5)
    assert _parameters("mnist_baseline") == convolutions + _full(128 * 28 * 28, 328, 192, 10)


def test_the_baseline_of_multimnist_pools_twice() -> None:
    convolutions = _conv(1, 512, 9) + _conv(512, 256, 5)
    assert _parameters("multimnist_baseline") == convolutions + _full(256 * 9 * 9, 1024, 10)


def test_the_baseline_of_affnist_has_as_many_parameters_as_the_capsnet() -> None:
    baseline, capsnet = _parameters("affnist_baseline"), _parameters("affnist")
    assert baseline == pytest.approx(capsnet, rel=0.05)
    model = compose.cell(["experiment=paper/affnist_baseline"]).config["model"]
    assert max(model["conv"]["pool"]) > 1
    assert model["dropout"] > 0


def test_the_matched_cnn_costs_as_much_as_the_capsnet() -> None:
    matched, capsnet = _size("mnist_cnn_matched").flops, _size("mnist").flops
    assert matched == pytest.approx(capsnet, rel=0.05)


def test_the_baseline_of_mnist_costs_9_7_times_as_much() -> None:
    assert round(_size("mnist_baseline").flops / _size("mnist").flops, 1) == 9.7


def test_the_matched_cnn_is_the_baseline_narrowed() -> None:
    baseline, matched = (
        compose.cell([f"experiment=paper/{name}"]).config["model"]
        for name in ("mnist_baseline", "mnist_cnn_matched")
    )
    assert matched["conv"].pop("channels") == [80, 80, 40]
    assert baseline["conv"].pop("channels") == [256, 256, 128]  # the same proportions: 2, 2, 1
    assert matched.pop("name") != baseline.pop("name")
    assert matched == baseline


@pytest.mark.parametrize(
    ("preset", "loss", "dropout"),
    [
        ("mnist_baseline", "cross_entropy", 0.5),
        ("mnist_cnn_matched", "cross_entropy", 0.5),
        ("multimnist_baseline", "binary_cross_entropy", 0.0),
        ("affnist_baseline", "cross_entropy", 0.5),
    ],
)
def test_baselines_end_in_the_loss_of_the_paper(preset: str, loss: str, dropout: float) -> None:
    config = compose.cell([f"experiment=paper/{preset}"]).config
    assert config["loss"]["name"] == loss
    assert config["model"]["dropout"] == dropout
