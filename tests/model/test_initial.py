"""What the weights are before training, and what that does to capsules at step 0.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, C H W image.
"""

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

from capsweep.config import compose
from capsweep.data.batches import to_unit
from capsweep.model.capsnet import CapsNet, InitialWeights
from capsweep.model.convolution import Convolution
from capsweep.training import build

# Of a normal distribution cut off at two deviations: what is left has this deviation.
LEFT = 0.87962566


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def draw_weight(scheme: str, kind: str, gain: float = 1.0) -> Tensor:
    """Of a convolution with a fan-in of 8 * 9 * 9, or of votes."""
    if kind == "votes":
        weight_IJDP = torch.empty(100, 10, 16, 4)
        InitialWeights(scheme).draw_votes(weight_IJDP, gain)
        return weight_IJDP
    conv = Convolution(8, 64, kernel=9, stride=1, same=False)
    InitialWeights(scheme).draw_convolution(conv, kind)  # pyright: ignore[reportArgumentType]
    return conv.weight.detach()


@pytest.mark.parametrize(
    ("kind", "gain", "sd"),
    [("relu", 1, 0.05), ("linear", 1, 0.1), ("votes", 0.5, 0.1), ("votes", 2.0, 0.1)],
)
def test_truncated_normal_has_the_authors_deviations_whatever_the_gain(
    kind: str, gain: float, sd: float
) -> None:
    weight = draw_weight("truncated_normal", kind, gain)
    assert weight.std().item() == pytest.approx(LEFT * sd, rel=0.02)
    assert weight.abs().max().item() <= 2 * sd
    expected = scipy.stats.truncnorm(-2, 2, scale=sd)
    assert scipy.stats.kstest(weight.flatten().numpy(), expected.cdf).pvalue > 0.01


@pytest.mark.parametrize(("kind", "gain"), [("relu", math.sqrt(2)), ("linear", 1.0)])
def test_variance_keeps_the_variance_of_what_goes_through(kind: str, gain: float) -> None:
    weight = draw_weight("variance", kind)
    expected = scipy.stats.norm(scale=gain / math.sqrt(8 * 9 * 9))
    assert weight.std().item() == pytest.approx(expected.std(), rel=0.02)
    assert scipy.stats.kstest(weight.flatten().numpy(), expected.cdf).pvalue > 0.01


@pytest.mark.parametrize("line", ["", "recipe=authors"])
@pytest.mark.parametrize("bias", [0.0, -1.5])
def test_the_bias_of_convolutions_and_decoder_is_one_number(line: str, bias: float) -> None:
    network = build_capsnet(*line.split(), f"model.initial.bias={bias}")
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert torch.equal(parameter, torch.full_like(parameter, bias)), name


def build_capsnet(*overrides: str, seed: int = 0) -> CapsNet:
    torch.manual_seed(seed)
    network = build.build_network(compose.cell(overrides).config)
    assert isinstance(network, CapsNet)
    return network


def test_the_authors_network_draws_every_weight_so() -> None:
    network = build_capsnet("model=capsnet_small", "recipe=authors")
    deviations = {
        name: parameter.std().item() / LEFT
        for name, parameter in network.named_parameters()
        if "bias" not in name
    }
    assert deviations.pop("conv.weight") == pytest.approx(0.05, rel=0.02)
    assert len(deviations) == 5  # primary capsules, votes, three layers of the decoder
    assert list(deviations.values()) == pytest.approx([0.1] * 5, rel=0.02)
    biases = [parameter for name, parameter in network.named_parameters() if "bias" in name]
    assert len(biases) == 6  # and the class capsules'
    assert all((bias == 0.1).all() for bias in biases)


def test_the_authors_matrix_capsules_draw_every_weight_so() -> None:
    deviations = {
        "conv.weight": 0.05,
        "primary.pose.weight": 0.5,
        "primary.activation.weight": 3.0,
        "capsules.0.weight_KIJSS": 0.3,
        "capsules.1.weight_KIJSS": 0.3,
        "classes.weight_KIJSS": 0.01,
    }
    line = ["dataset=smallnorb", "model=matrix_capsnet", "recipe=em_authors"]
    parameters = dict(build.build_network(compose.cell(line).config).named_parameters())
    betas = {name for name in parameters if "beta_" in name}
    assert set(parameters) == {*deviations, "conv.bias", *betas}
    assert (parameters["conv.bias"] == 0.1).all()
    for name, sd in deviations.items():
        weight = parameters[name].detach()
        assert weight.abs().max().item() <= 2 * sd * (1 + 1e-6)
        assert weight.std().item() == pytest.approx(LEFT * sd, rel=0.05), name
        assert abs(weight.mean().item()) < 0.1 * sd, name


def measure_lengths(*overrides: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Lengths of primary and of class capsules at step 0, of the full CapsNet on real digits: thin
    strokes on a background of zeros.
    """
    examples = build.build_reader(compose.cell([]).config).read("").train
    network = build_capsnet("model=capsnet", *overrides, seed=seed)
    assert network.conv is not None
    with torch.no_grad():
        features_BCHW = torch.relu(network.conv(to_unit(examples.images_NCHW[:32])))
        pose_BIP = network.primary(features_BCHW)
        return torch.linalg.vector_norm(pose_BIP, dim=-1), network.classes(pose_BIP).act_BJ


# The authors' scales, emulated on sparse images: primary capsules 0.098 long, class capsules 0.142.
@pytest.mark.parametrize("seed", [0, 1])
def test_the_authors_capsules_start_as_short_as_theirs(seed: int) -> None:
    primary_BI, class_BJ = measure_lengths("recipe=authors", seed=seed)
    assert 0.08 < primary_BI.mean().item() < 0.14
    assert 0.12 < class_BJ.mean().item() < 0.17
    assert class_BJ.max().item() < 0.25


@pytest.mark.parametrize("recipe", [["recipe=paper"], []], ids=["paper", "no-recipe"])
def test_our_own_weights_start_neither_silent_nor_saturated(recipe: list[str]) -> None:
    primary_BI, class_BJ = measure_lengths(*recipe)
    assert 0.4 < primary_BI.mean().item() < 0.8
    assert 0.05 < class_BJ.mean().item() < 0.5


@pytest.mark.parametrize(
    ("line", "divisor"),
    [
        ("model.primary.divided=false routing.none_of_the_above=true", 1),
        ("model.primary.divided=true", 8),
        ("model.primary.divided=true model.primary.types=5", 5),
        ("model.primary.divided=true routing.none_of_the_above=true", 9),
    ],
)
def test_primary_votes_are_divided_among_the_types_and_none_of_the_above(
    line: str, divisor: int
) -> None:
    assert build_capsnet("model=capsnet_small", *line.split()).primary.conv.divisor == divisor
