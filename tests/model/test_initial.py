"""What the weights are before training, and what that does to capsules at step 0.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, C H W image.
"""

import math
from collections.abc import Callable

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from capsweep.config import compose
from capsweep.data.batches import to_unit
from capsweep.model.capsnet import CapsNet, Decoder, InitialWeights, count_first_shares
from capsweep.model.convolution import Convolution
from capsweep.training import build

# Of a normal distribution cut off at two deviations: what is left has this deviation.
LEFT = 0.87962566


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def _convolution() -> Convolution:
    """Fan-in 8 * 9 * 9."""
    return Convolution(8, 64, kernel=9, stride=1, same=False)


def _decoder() -> Decoder:
    return Decoder([128, 256], num_classes=10, class_pose=16, image_shape=[1, 28, 28])


def _assert_truncated_normal(weight: Tensor, sd: float) -> None:
    assert weight.std().item() == pytest.approx(LEFT * sd, rel=0.02)
    assert weight.abs().max().item() <= 2 * sd
    expected = scipy.stats.truncnorm(-2, 2, scale=sd)
    assert scipy.stats.kstest(weight.detach().flatten().numpy(), expected.cdf).pvalue > 0.01


@pytest.mark.parametrize(("kind", "sd"), [("relu", 0.05), ("linear", 0.1)])
def test_truncated_normal_has_the_authors_deviations(kind: str, sd: float) -> None:
    conv = _convolution()
    InitialWeights("truncated_normal").draw_convolution(conv, kind)  # pyright: ignore[reportArgumentType]
    _assert_truncated_normal(conv.weight, sd)


@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_truncated_votes_have_the_authors_deviation_whatever_the_gain(gain: float) -> None:
    weight_IJDP = torch.empty(100, 10, 16, 4)
    InitialWeights("truncated_normal").draw_votes(weight_IJDP, gain)
    _assert_truncated_normal(weight_IJDP, 0.1)


@pytest.mark.parametrize(("kind", "gain"), [("relu", math.sqrt(2)), ("linear", 1.0)])
def test_variance_keeps_the_variance_of_what_goes_through(kind: str, gain: float) -> None:
    conv = _convolution()
    InitialWeights("variance").draw_convolution(conv, kind)  # pyright: ignore[reportArgumentType]
    expected = scipy.stats.norm(scale=gain / math.sqrt(8 * 9 * 9))
    assert conv.weight.std().item() == pytest.approx(expected.std(), rel=0.02)
    assert scipy.stats.kstest(conv.weight.detach().flatten().numpy(), expected.cdf).pvalue > 0.01


@pytest.mark.parametrize("scheme", ["variance", "truncated_normal"])
@pytest.mark.parametrize(("bias", "found"), [(None, 0.0), (0.0, 0.0), (0.1, 0.1), (-1.5, -1.5)])
def test_the_bias_of_convolutions_and_decoder_is_one_number(
    scheme: str, bias: float | None, found: float
) -> None:
    conv, decoder = _convolution(), _decoder()
    InitialWeights(scheme, bias).draw_convolution(conv, "relu")
    assert conv.bias is not None
    assert torch.equal(conv.bias, torch.full((64,), found))
    if bias is None:
        return  # the decoder keeps what torch makes
    InitialWeights(scheme, bias).draw_decoder(decoder)
    for linear in (x for x in decoder.modules() if isinstance(x, nn.Linear)):
        assert torch.equal(linear.bias, torch.full_like(linear.bias, bias))


def _network(*overrides: str, seed: int = 0) -> CapsNet:
    torch.manual_seed(seed)
    network = build.build_network(compose.cell(overrides).config)
    assert isinstance(network, CapsNet)
    return network


def test_the_authors_network_draws_every_weight_so() -> None:
    network = _network("model=capsnet_small", "recipe=authors")
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


@pytest.fixture(scope="module")
def digits() -> Tensor:
    """Real digits: thin strokes on a background of zeros."""
    return to_unit(build.build_reader(compose.cell([]).config).read("").train.images_NCHW[:32])


@pytest.fixture
def lengths(digits: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """Lengths of primary and of class capsules at step 0, of the full CapsNet."""

    def at_step_0(*overrides: str, seed: int) -> tuple[Tensor, Tensor]:
        network = _network("model=capsnet", *overrides, seed=seed)
        with torch.no_grad():
            pose_BIP = network.primary(torch.relu(network.conv(digits)))
            return torch.linalg.vector_norm(pose_BIP, dim=-1), network.classes(pose_BIP).act_BJ

    return at_step_0


# The authors' scales, emulated on sparse images: primary capsules 0.098 long, class capsules 0.142.
@pytest.mark.parametrize("seed", [0, 1])
def test_the_authors_capsules_start_as_short_as_theirs(
    lengths: Callable[..., tuple[Tensor, Tensor]], seed: int
) -> None:
    primary_BI, class_BJ = lengths("recipe=authors", seed=seed)
    assert 0.08 < primary_BI.mean().item() < 0.14
    assert 0.12 < class_BJ.mean().item() < 0.17
    assert class_BJ.max().item() < 0.25


@pytest.mark.parametrize("recipe", [["recipe=paper"], []], ids=["paper", "no-recipe"])
def test_our_own_weights_start_neither_silent_nor_saturated(
    lengths: Callable[..., tuple[Tensor, Tensor]], recipe: list[str]
) -> None:
    primary_BI, class_BJ = lengths(*recipe, seed=0)
    assert 0.4 < primary_BI.mean().item() < 0.8
    assert 0.05 < class_BJ.mean().item() < 0.5


def test_primary_votes_are_divided_among_the_types_and_none_of_the_above() -> None:
    def divisor(*overrides: str) -> int:
        return _network("model=capsnet_small", *overrides).primary.conv.divisor

    assert divisor() == 1
    assert divisor("model.primary.divided=true") == 8
    assert divisor("model.primary.divided=true", "model.primary.types=5") == 5
    assert divisor("model.primary.divided=true", "routing.none_of_the_above=true") == 9
    assert divisor("model.primary.divided=false", "routing.none_of_the_above=true") == 1


class Unequal(nn.Module):
    """A variant whose children do not divide themselves at first."""

    def __init__(self, *, num_children: int, num_parents: int, parent_pose: int) -> None:
        super().__init__()


def test_a_variant_without_equal_shares_cannot_divide_primary_votes() -> None:
    with pytest.raises(
        ValueError, match=r"model\.primary\.divided=true needs .* set model\.primary\.divided=false"
    ):
        count_first_shares(Unequal, 32)
