"""Every routing variant in both capsule networks: it trains, in both precisions, and begins with
the same weights as the others.

Shape letters: B batch, I children, J parents, D parent pose.
"""

import re
from functools import cache

import pytest
import torch
from routing_variants import VARIANTS, every_variant
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.config import compose
from capsweep.data.batches import to_unit
from capsweep.data.digits import DigitsReader
from capsweep.errors import ConfigError
from capsweep.lab.evaluation.attack import find_logits
from capsweep.model.capsnet import CapsNet
from capsweep.model.capsules import LinearHead, squash
from capsweep.training import build
from capsweep.training.size import measure_size

LINEAR = ["dataset=digits", "model.head=linear", "loss=cross_entropy"]
every_network = pytest.mark.parametrize("model", ["capsnet_tiny", "matrix_capsnet_tiny"])


def make_network(*overrides: str) -> nn.Module:
    """With the first weights of seed 0."""
    config = compose.cell([*LINEAR, *overrides]).config
    torch.manual_seed(0)
    return build.build_network(config)


@cache
def load_digits() -> tuple[Tensor, Tensor]:
    """16 images and labels."""
    sha256 = compose.cell(["dataset=digits"]).config["dataset"]["reader"]["sha256"]
    train = DigitsReader(sha256).read("").train
    return to_unit(train.images_NCHW[:16]), train.labels_N[:16]


@every_variant
@every_network
def test_a_small_step_against_the_gradient_lowers_the_loss(stem: str, model: str) -> None:
    network = make_network(f"model={model}", f"routing={stem}").double()
    network.eval()  # random couplings are the same twice
    images_BCHW, labels_B = load_digits()[0].double(), load_digits()[1]
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    before = F.cross_entropy(network(images_BCHW).scores_BN, labels_B)
    before.backward()
    for name, parameter in network.classes.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    optimizer.step()
    with torch.no_grad():
        after = F.cross_entropy(network(images_BCHW).scores_BN, labels_B)
    assert after < before


@every_variant
@every_network
def test_a_plan_counts_its_parameters_and_in_bfloat16_routing_stays_in_whole_precision(
    stem: str, model: str
) -> None:
    overrides = [f"model={model}", f"routing={stem}"]
    network = make_network(*overrides).eval()
    size = measure_size(compose.cell([*LINEAR, *overrides]).config)  # as a plan counts
    assert size.parameters == sum(parameter.numel() for parameter in network.parameters())
    images_BCHW, labels_B = load_digits()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(images_BCHW)
        loss = F.cross_entropy(output.scores_BN, labels_B)
    loss.backward()
    assert output.pose_BJD.dtype == output.scores_BN.dtype == torch.float32
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    expected = F.cross_entropy(network(images_BCHW).scores_BN, labels_B)
    assert loss.item() == pytest.approx(expected.item(), rel=0.02)


@every_network
def test_all_variants_of_a_seed_begin_with_the_same_weights(model: str) -> None:
    networks = [make_network(f"model={model}", f"routing={stem}") for stem in VARIANTS]
    shared = {n for n, _ in networks[0].named_parameters() if "routing" not in n}
    assert any(name.startswith("head") for name in shared)
    first = dict(networks[0].named_parameters())
    for network in networks[1:]:
        parameters = dict(network.named_parameters())
        assert {name for name in parameters if "routing" not in name} == shared
        assert all(torch.equal(parameters[name], first[name]) for name in shared)


@pytest.mark.parametrize("head", ["linear", "squashed_linear"])
def test_a_linear_head_reads_a_logit_off_each_pose_by_the_weights_of_all(head: str) -> None:
    lines = "dataset=digits", "loss=cross_entropy", "model=capsnet_tiny", "routing=em"
    config = compose.cell([*lines, f"model.head={head}"]).config
    network = build.build_network(config)
    assert isinstance(network, CapsNet)
    assert isinstance(network.head, LinearHead)
    output = network(load_digits()[0])
    weight_D, bias = network.head.linear.weight[0], network.head.linear.bias
    read_BJD = output.pose_BJD if head == "linear" else squash(output.pose_BJD)
    torch.testing.assert_close(output.scores_BN, read_BJD @ weight_D + bias)
    assert torch.equal(find_logits(output), output.scores_BN)  # what attacks climb


def test_squashed_lengths_are_scores_whatever_activations_the_routing_computes() -> None:
    lines = "dataset=digits", "model=capsnet_tiny", "routing=em", "model.head=squashed_length"
    network = build.build_network(compose.cell(lines).config)
    output = network(load_digits()[0])
    torch.testing.assert_close(output.scores_BN, squash(output.pose_BJD).norm(dim=2))
    assert output.logits_BN is None  # those of EM's own activations say something else
    output.scores_BN.sum().backward()
    assert network.classes.weight_IJDP.grad.abs().min() > 0


@every_variant
def test_a_head_squashes_only_poses_that_the_routing_has_not_squashed(stem: str) -> None:
    line = f"model=capsnet_tiny model.head=squashed_linear model.vote_gain=100 routing={stem}"
    config = compose.cell([LINEAR[0], LINEAR[2], *line.split()]).config
    network = build.build_network(config)
    longest = network(load_digits()[0]).pose_BJD.norm(dim=2).max()
    assert network.head.squashed == bool(longest > 1.001)


KERNELS = "routing=uniform routing.impl=triton is for vector capsules only; add model=capsnet"
LENGTHS = "routing=inverted_attention needs model.head=linear; add model.head=linear loss=cross_ent"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model=capsnet_tiny routing=inverted_attention", LENGTHS),
        ("model=matrix_capsnet_tiny routing=inverted_attention", LENGTHS),
        ("model=capsnet_tiny model.head=squashed_length routing=inverted_attention", LENGTHS),
        ("model=capsnet_tiny routing=em routing.impl=triton", "routing.impl must be one of a"),
        ("model=matrix_capsnet_tiny routing=uniform routing.impl=triton", KERNELS),
        ("routing.impl=triton routing.normaliser=entmax", "routing.impl=triton works with a so"),
        ("routing.normaliser=argmax", "routing.normaliser must be one of softmax, sigmoid, max"),
        ("routing.normaliser=entmax routing.none_of_the_above=true", "routing.none_of_the_above=t"),
        ("routing=self_attention model.primary.divided=true", "model.primary.divided=true needs a"),
    ],
)
def test_a_routing_that_a_network_cannot_take_is_refused_in_one_line_with_the_cure(
    line: str, message: str
) -> None:
    config = compose.cell(["dataset=digits", *line.split()]).config
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}.*$"):
        measure_size(config)


@pytest.mark.parametrize("head", ["linear", "squashed_linear"])
def test_logits_of_a_linear_head_are_refused_where_a_loss_takes_lengths(head: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.head={head} .* set loss=cross_entropy$"):
        compose.cell(["model=capsnet_tiny", f"model.head={head}"])


@every_network
def test_a_network_of_shared_votes_is_one_whose_weights_are_equal(model: str) -> None:
    shared = make_network(f"model={model}", "routing=dynamic", "model.votes.shared=true")
    alone = make_network(f"model={model}", "routing=dynamic")
    weights = shared.state_dict()
    for name, own in alone.state_dict().items():
        weights[name] = weights[name].expand_as(own)
    alone.load_state_dict(weights)
    images_BCHW, labels_B = load_digits()
    outputs = [network(images_BCHW).scores_BN for network in (shared, alone)]
    torch.testing.assert_close(*outputs)
    name = "weight_IJDP" if isinstance(alone, CapsNet) else "weight_KIJSS"
    for scores_BN in outputs:
        F.cross_entropy(scores_BN, labels_B).backward()
    gradients = [getattr(network.classes, name).grad for network in (shared, alone)]
    torch.testing.assert_close(gradients[0], gradients[1].sum_to_size(gradients[0].shape))
