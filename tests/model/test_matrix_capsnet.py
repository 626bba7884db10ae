"""The network of matrix capsules, built from configuration as every cell builds it."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from capsweep.config import compose
from capsweep.data.batches import Batch
from capsweep.errors import ConfigError
from capsweep.model.matrix_capsnet import MatrixCapsNet
from capsweep.training import build
from capsweep.training.size import network_size

STEREO = ("dataset=smallnorb", "model=matrix_capsnet")
LARGE = ("model.conv.channels=32", "model.primary.types=32", "model.capsules.types=[32,32]")
TINY = (
    "model=matrix_capsnet",
    "model.conv.channels=8",
    "model.primary.types=3",
    "model.capsules.types=[4,3]",
)
NUM_IMAGES = 4


def config_of(*overrides: str, channels: int = 2) -> dict[str, Any]:
    """For smallNORB, of which a network may see one image of the two."""
    config = dict(compose.cell([*STEREO, *overrides]).config)
    shape = {"image_shape": [channels, 32, 32]}
    return config | {"dataset": config["dataset"] | shape, "model": config["model"] | shape}


def network_of(*overrides: str) -> MatrixCapsNet:
    """With first weights that are the same every time."""
    torch.manual_seed(0)
    built = build.build_network(config_of(*overrides))
    assert isinstance(built, MatrixCapsNet)
    return built


@pytest.mark.parametrize(
    ("overrides", "channels", "expected"),
    [
        ((), 2, 68_618),
        ((), 1, 67_018),
        (("model.primary.bias=true",), 2, 68_754),
        (("model.primary.bias=true",), 1, 67_154),
        (LARGE, 2, 316_650),
        (LARGE, 1, 315_850),
        ((*LARGE, "model.primary.bias=true"), 2, 317_194),
        ((*LARGE, "model.primary.bias=true"), 1, 316_394),
    ],
)
def test_number_of_parameters_is_that_of_the_paper(
    overrides: tuple[str, ...], channels: int, expected: int
) -> None:
    assert network_size(config_of(*overrides, channels=channels)).parameters == expected


def test_positions_are_those_of_the_paper() -> None:
    network = network_of()
    seen: list[tuple[int, ...]] = []
    network.primary.register_forward_hook(lambda _, __, out: seen.append(tuple(out.act_BNI.shape)))
    output = network(torch.rand(2, 2, 32, 32))
    assert seen == [(2, 14 * 14, 8)]
    shapes = [tuple(layer.child_MK.shape) for layer in (*network.capsules, network.classes)]
    assert shapes == [(6 * 6, 9), (4 * 4, 9), (1, 4 * 4)]
    assert output.scores_BN.shape == (2, 5)
    assert output.pose_BJD.shape == (2, 5, 16)
    assert output.logits_BN is not None
    torch.testing.assert_close(output.logits_BN.sigmoid(), output.scores_BN)


def spatial_parents(child_MK: Tensor, positions: int) -> Counter[int]:
    """How many child positions have how many parent positions."""
    return Counter(torch.bincount(child_MK.flatten(), minlength=positions).tolist())


def test_children_have_one_to_nine_spatial_parents_or_none_at_the_border() -> None:
    first, second = network_of().capsules
    assert spatial_parents(first.child_MK, 196) == {0: 27, 1: 64, 2: 80, 4: 25}
    assert first.children_without_parent == 27 * 8
    assert spatial_parents(second.child_MK, 36) == {1: 4, 2: 8, 3: 8, 4: 4, 6: 8, 9: 4}
    assert second.children_without_parent == 0


PIXELS = [-0.075, -0.035, 0.005, 0.045]  # 4 i + 8 - 15.5 pixels, in hundreds
GRID = [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize(("scale", "coordinates"), [("pixels", PIXELS), ("grid", GRID)])
@pytest.mark.parametrize(("place", "numbers"), [("right_column", (3, 7)), ("first", (0, 1))])
def test_row_and_column_are_added_to_two_numbers_of_votes_for_classes(
    place: str, numbers: tuple[int, int], scale: str, coordinates: list[float]
) -> None:
    network = network_of(f"model.coordinates.place={place}", f"model.coordinates.scale={scale}")
    offset_KD = network.classes.offset_KD
    assert offset_KD is not None
    rows_and_columns = torch.tensor(list(itertools.product(coordinates, repeat=2)))
    torch.testing.assert_close(offset_KD[:, numbers], rows_and_columns)
    others = [number for number in range(16) if number not in numbers]
    assert not offset_KD[:, others].any()
    assert all(layer.offset_KD is None for layer in network.capsules)


def test_first_weights_are_those_of_the_authors() -> None:
    deviations = {
        "conv.weight": 0.05,
        "primary.pose.weight": 0.5,
        "primary.activation.weight": 3.0,
        "capsules.0.weight_KIJSS": 0.3,
        "capsules.1.weight_KIJSS": 0.3,
        "classes.weight_KIJSS": 0.01,
    }
    found = dict(network_of("recipe=em_authors").named_parameters())
    betas = [name for name in found if "beta_" in name]
    assert len(betas) == 6
    assert set(found) == {*deviations, "conv.bias", *betas}
    assert (found["conv.bias"] == 0.1).all()
    for name, deviation in deviations.items():
        weight = found[name].detach()
        assert weight.abs().max().item() <= 2 * deviation * (1 + 1e-6)
        # A normal of which nothing is beyond two deviations is narrower.
        assert weight.std().item() == pytest.approx(0.8796 * deviation, rel=0.05), name
        assert abs(weight.mean().item()) < 0.1 * deviation, name


@pytest.mark.parametrize(
    "line",
    [
        " ".join(TINY),
        " ".join([*TINY, "routing=dynamic"]),
        " ".join([*TINY, "model.pose=vector"]),
        " ".join([*TINY, "model.primary.bias=true", "model.conv.batch_norm=true"]),
        "model=capsnet_small routing=em",
    ],
)
def test_a_step_reaches_every_parameter(line: str) -> None:
    config = compose.cell(line.split()).config
    torch.manual_seed(0)
    network, objective = build.build_network(config), build.build_objective(config)
    generator = torch.Generator().manual_seed(0)
    images_BCHW = torch.rand(NUM_IMAGES, 1, 28, 28, generator=generator)
    batch = Batch(images_BCHW, torch.tensor([3, 1, 4, 1]))
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.capsules.kernel=[3]", r"^model\.capsules\.kernel needs one size .* 2 layers"),
        ("model.capsules.kernel=[15,3]", r"^model\.capsules\.kernel=15 does not fit .* 14x14"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_key(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        network_size(config_of(override))


def test_autocast_reaches_the_convolutions_but_not_the_routing() -> None:
    network = network_of()
    seen: dict[str, torch.dtype] = {}
    network.conv.register_forward_hook(lambda _, __, out: seen.update(conv=out.dtype))
    for name in ("capsules.0", "capsules.1", "classes"):
        network.get_submodule(name).register_forward_hook(
            lambda _, __, out, name=name: seen.update({name: out.pose_BJD.dtype})
        )
    with torch.autocast("cpu", torch.bfloat16):
        output = network(torch.rand(2, 2, 32, 32))
    assert seen.pop("conv") == torch.bfloat16
    assert set(seen.values()) == {torch.float32}
    assert len(seen) == 3
    assert output.scores_BN.isfinite().all()
