"""The networks, built from configuration as every cell builds them."""

import copy
import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from capsweep.config import compose
from capsweep.data.batches import Batch
from capsweep.errors import ConfigError
from capsweep.model.capsnet import Decoder
from capsweep.model.matrix_capsnet import MatrixCapsNet
from capsweep.model.routing.sda import SDARouting
from capsweep.model.votes import ConvolutionalVotes
from capsweep.training import build
from capsweep.training.size import measure_layers, measure_size

NETWORKS = {
    "capsnet": "model=capsnet_tiny",
    "three channels": "model=capsnet_tiny dataset=svhn",
    "divided": "model=capsnet_tiny model.primary.divided=true model.padding=same",
    "capsnet, em": "model=capsnet_small routing=em",
    "cnn": "model=cnn_tiny loss=cross_entropy",
    "matrix": "model=matrix_capsnet_tiny",
    "matrix, dynamic": "model=matrix_capsnet_tiny routing=dynamic",
    "vectors": "model=matrix_capsnet_tiny model.pose=vector",
    "normalised": "model=matrix_capsnet_tiny model.primary.bias=true model.conv.batch_norm=true",
    "no convolution": "model=capsnet_sign model.primary.kernel=9 model.primary.stride=9",
    "residual": "model=resnet model.stem.width=2 dataset=cifar10",
    "residual, capsules": (
        "model=resnet_capsnet routing=em model.stem.width=2 model.primary.types=2 dataset=cifar10"
    ),
}
every_network = pytest.mark.parametrize("line", NETWORKS.values(), ids=NETWORKS)


def compose_line(line: str) -> dict[str, Any]:
    """The configuration of a cell."""
    return dict(compose.cell(line.split()).config)


def draw_batch(config: dict[str, Any]) -> Batch:
    """Four random images that the network takes."""
    generator = torch.Generator().manual_seed(0)
    shape = 4, *config["dataset"]["image_shape"]
    return Batch(torch.rand(shape, generator=generator), torch.tensor([3, 1, 4, 1]))


@every_network
def test_a_step_reaches_every_parameter(line: str) -> None:
    config = compose_line(line)
    torch.manual_seed(0)
    network, objective = build.build_network(config), build.build_objective(config)
    batch = draw_batch(config)
    before = {name: parameter.clone() for name, parameter in network.named_parameters()}
    optimizer = build.build_optimizer(config)(network)
    objective(network, batch).total.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    optimizer.step()
    unchanged = [name for name, after in network.named_parameters() if after.equal(before[name])]
    assert unchanged == []
    assert objective(network, batch).total.isfinite()


def use_channels_first(network: nn.Module) -> nn.Module:
    """A copy that is laid out as torch does by itself."""
    copied = copy.deepcopy(network)
    for parameter in copied.parameters():
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype).copy_(parameter)
    return copied


@every_network
def test_numbers_and_gradients_are_those_of_channels_first(line: str) -> None:
    config = compose_line(line)
    torch.manual_seed(0)
    network = build.build_network(config).double().eval()
    plain, batch = use_channels_first(network), draw_batch(config)
    batch = Batch(batch.images_BCHW.double(), batch.labels)
    totals = [build.build_objective(config)(one, batch).total for one in (network, plain)]
    torch.testing.assert_close(totals[0], totals[1], rtol=1e-6, atol=0)
    for total in totals:
        total.backward()
    convolutions = {id(m.weight) for m in network.modules() if isinstance(m, nn.Conv2d)}
    for one, other in zip(network.parameters(), plain.parameters(), strict=True):
        assert one.stride()[1] == 1 if id(one) in convolutions else one.is_contiguous()
        # What a fused optimiser counts on: a gradient lies in memory as its parameter does.
        assert one.grad.stride() == one.stride()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model.conv.kernel=29", r"^model\.conv\.kernel=29 does not fit into 28 pixels"),
        ("model.primary.kernel=21", r"^model\.primary\.kernel=21 does not fit into 20 pixels"),
        ("model=capsnet_sign model.primary.kernel=29", r"^model\.primary\.kernel=29 does not"),
        (
            "model=matrix_capsnet model.capsules.kernel=[3]",
            r"^model\.capsules\.kernel needs one size .* 2 layers",
        ),
        (
            "model=matrix_capsnet model.capsules.kernel=[13,3]",
            r"^model\.capsules\.kernel=13 does not fit into 12 pixels",
        ),
        (
            "model=cnn_small model.conv.pool=[2,2]",
            r"^model\.conv\.pool needs one size for each of the 3 layers .*\[2, 2\]",
        ),
        ("model=cnn_small model.conv.pool=[4,4,4]", r"^model\.conv\.pool leaves nothing of \[28"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_key(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measure_size(compose_line(line))


def test_a_routing_of_matrices_alone_is_refused_in_a_network_of_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SDARouting, "votes_kind", ConvolutionalVotes)
    measure_layers(compose_line("model=matrix_capsnet_tiny routing=sda"))
    with pytest.raises(ConfigError, match=r"^routing=sda is for matrix capsules only; add model"):
        measure_layers(compose_line("model=capsnet_tiny routing=sda"))


@pytest.mark.parametrize(
    ("line", "layers"),
    [("", ["classes"]), ("model=matrix_capsnet_tiny", ["capsules.0", "capsules.1", "classes"])],
)
def test_traces_of_its_layers_are_kept_on_request(line: str, layers: list[str]) -> None:
    config = compose_line(f"{line} routing.num_iters=2")
    network, images_BCHW = build.build_network(config), draw_batch(config).images_BCHW
    assert network(images_BCHW).traces is None
    output = network(images_BCHW, with_trace=True)
    assert {name: len(trace) for name, trace in output.traces.items()} == dict.fromkeys(layers, 2)
    last = output.traces["classes"][-1]
    torch.testing.assert_close(last["pose"][:, 0], output.pose_BJD)


def test_a_decoded_image_is_in_0_to_1_and_shows_nothing_of_a_masked_class() -> None:
    decoder = Decoder([8, 16], num_classes=3, class_pose=4, image_shape=(2, 5, 7))
    poses = torch.randn(2, 3, 4)
    masks = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    images_BCHW = decoder(100 * poses, masks)
    assert images_BCHW.shape == (2, 2, 5, 7)
    assert ((images_BCHW >= 0) & (images_BCHW <= 1)).all()
    changed_BJD = poses + 10 * (1 - masks)[..., None]
    assert torch.equal(decoder(changed_BJD, masks), decoder(poses, masks))


def test_a_list_gives_each_convolution_its_own_kernel_and_pool() -> None:
    sizes = "conv.channels=[2,3,4] model.conv.kernel=[5,3,1] model.conv.pool=[3,1,2]"
    config = compose_line(f"model=baseline_multimnist model.{sizes} model.hidden=[7,5]")
    network = build.build_network(config)
    shapes = [tuple(p.shape) for name, p in network.named_parameters() if "weight" in name]
    convolutions = [(2, 1, 5, 5), (3, 2, 3, 3), (4, 3, 1, 1)]
    assert shapes == [*convolutions, (7, 4 * 4 * 4), (5, 7), (10, 5)]  # after pooling: 4x4 places
    assert network(draw_batch(config).images_BCHW).scores_BN.shape == (4, 10)


def build_stereo(*overrides: str) -> MatrixCapsNet:
    """Of smallNORB."""
    line = " ".join(["dataset=smallnorb model=matrix_capsnet", *overrides])
    network = build.build_network(compose_line(line))
    assert isinstance(network, MatrixCapsNet)
    return network


def test_positions_of_matrix_capsules_are_those_of_the_paper() -> None:
    network = build_stereo()
    shapes = [tuple(layer.child_MK.shape) for layer in (*network.capsules, network.classes)]
    assert shapes == [(6 * 6, 9), (4 * 4, 9), (1, 4 * 4)]
    output = network(torch.rand(2, 2, 32, 32))
    assert output.pose_BJD.shape == (2, 5, 16)
    torch.testing.assert_close(output.logits_BN.sigmoid(), output.scores_BN)
    # How many child positions have how many parent positions: 14x14 of eight types, then 6x6.
    parents = [
        Counter(torch.bincount(layer.child_MK.flatten(), minlength=count).tolist())
        for layer, count in zip(network.capsules, (14 * 14, 6 * 6), strict=True)
    ]
    assert parents == [{0: 27, 1: 64, 2: 80, 4: 25}, {1: 4, 2: 8, 3: 8, 4: 4, 6: 8, 9: 4}]


def test_sizes_of_layers_do_not_depend_on_the_order_of_keys() -> None:
    config = compose_line("model=matrix_capsnet_tiny model.capsules.types=[5,6]")
    capsules = dict(sorted(config["model"]["capsules"].items()))  # as the ledger writes them
    network = build.build_network(config | {"model": config["model"] | {"capsules": capsules}})
    assert isinstance(network, MatrixCapsNet)
    assert [tuple(x.weight_KIJSS.shape[:3]) for x in network.capsules] == [(9, 4, 5), (9, 5, 6)]


PIXELS = [-0.075, -0.035, 0.005, 0.045]  # 4 i + 8 - 15.5 pixels, in hundreds
GRID = [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize(("scale", "coordinates"), [("pixels", PIXELS), ("grid", GRID)])
@pytest.mark.parametrize(("place", "numbers"), [("right_column", (3, 7)), ("first", (0, 1))])
def test_row_and_column_are_added_to_two_numbers_of_votes_for_classes(
    place: str, numbers: tuple[int, int], scale: str, coordinates: list[float]
) -> None:
    network = build_stereo(f"model.coordinates.place={place}", f"model.coordinates.scale={scale}")
    expected_KD = torch.zeros(16, 16)
    expected_KD[:, numbers] = torch.tensor(list(itertools.product(coordinates, repeat=2)))
    torch.testing.assert_close(network.classes.offset_KD, expected_KD)
    assert all(layer.offset_KD is None for layer in network.capsules)


LINEAR = "model.head=linear loss=cross_entropy"
SIGNLESS = (
    "dynamic routing.bias=false",
    "dynamic routing.bias=false routing.normaliser=max_min",
    *("sda routing.bias=false", "uniform routing.bias=false"),
    *("em", "k_means", "heinsen", "variational_bayes", "self_attention"),
)
SIGNED = (
    *("dynamic routing.bias=true", "sda routing.bias=true", "uniform routing.bias=true"),
    *("em model.primary.bias=true", "self_routing"),
    *(f"inverted_attention {LINEAR}", f"k_means {LINEAR}"),
)


@pytest.mark.parametrize("routing", [*SIGNLESS, *SIGNED])
def test_a_bias_gates_on_poses_or_a_linear_head_alone_tell_x_from_its_negative(
    routing: str,
) -> None:
    network = build.build_network(compose_line(f"experiment=sign routing={routing}")).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    x_B111 = torch.rand((9, 1, 1, 1), generator=generator, dtype=torch.float64)
    with torch.no_grad():
        scores_BN, of_negatives_BN = network(x_B111).scores_BN, network(-x_B111).scores_BN
    if routing in SIGNLESS:
        torch.testing.assert_close(of_negatives_BN, scores_BN, rtol=1e-12, atol=0)
        assert (scores_BN.std(dim=0) > 1e-4).all()  # it does see how large they are
    else:
        difference_B = (scores_BN - of_negatives_BN).abs().amax(dim=1)
        assert (difference_B > 1e-6).all()  # rounding is 1e-15
