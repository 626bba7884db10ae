"""The networks of the two papers, each as its preset composes it."""

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
def test_primary_capsules_stand_at_every_place(preset: str, sizes: Sizes) -> None:
    with torch.device("meta"):
        network = build.network(compose.cell([f"experiment=paper/{preset}"]).config)
    assert isinstance(network, CapsNet)
    children, parents, parent_pose, child_pose = network.classes.weight_IJDP.shape
    assert (children, child_pose) == (sizes.children, sizes.pose)
    assert (parents, parent_pose) == (sizes.classes, sizes.class_pose)


def test_multimnist_has_one_decoder_and_uses_it_for_each_digit() -> None:
    layers = _decoder_layers(CAPSNETS["multimnist"])
    one_pass = sum(2 * inputs * outputs for inputs, outputs in layers)
    whole, plain = _size("multimnist"), _size("multimnist", NO_DECODER)
    assert whole.parameters - plain.parameters == _decoder(CAPSNETS["multimnist"])
    assert whole.flops - plain.flops == 2 * one_pass


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


CNNS = ("smallnorb_cnn", "viewpoint_azimuth_cnn", "viewpoint_elevation_cnn")


def test_the_cnns_of_the_em_paper_differ_in_data_and_epochs_alone() -> None:
    cells = [compose.cell([f"experiment=em/{preset}"]) for preset in CNNS]
    assert [size(cell.config).parameters for cell in cells] == [4_253_349] * 3
    rest = [{k: v for k, v in c.science.items() if k not in ("dataset", "epochs")} for c in cells]
    assert rest[0] == rest[1] == rest[2]
    assert [cell.science["epochs"] for cell in cells] == [100, 300, 300]
