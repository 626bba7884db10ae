"""The objective on a real network."""

from collections.abc import Callable

import pytest
import torch

from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.training import build
from capsweep.training.size import network_size


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.rand(4, 1, 28, 28, generator=generator), torch.tensor([3, 0, 9, 3]))


def test_total_is_classification_plus_weighted_reconstruction(
    small_cell: Callable[..., Cell], batch: Batch
) -> None:
    with_decoder = small_cell("loss.reconstruction.weight=0.01").config
    network = build.build_network(with_decoder)
    both = build.build_objective(with_decoder)(network, batch)
    alone = build.build_objective(small_cell("loss.reconstruction.weight=0").config)(network, batch)
    assert both.reconstruction is not None
    assert alone.reconstruction is None
    torch.testing.assert_close(both.total, alone.total + 0.01 * both.reconstruction)


def test_the_decoder_sees_the_true_class_not_the_predicted_one(
    small_cell: Callable[..., Cell], batch: Batch
) -> None:
    config = small_cell().config
    network, objective = build.build_network(config), build.build_objective(config)
    other = Batch(batch.images_BCHW, (batch.labels + 1) % 10)
    truth, lie = objective(network, batch), objective(network, other)
    torch.testing.assert_close(truth.scores_BN, lie.scores_BN)
    assert truth.reconstruction is not None
    assert truth.reconstruction != lie.reconstruction


def test_constructor_names_never_reach_the_network(small_cell: Callable[..., Cell]) -> None:
    assert network_size(small_cell("model=cnn_small").config).parameters == 516_690


def test_sizes_that_do_not_fit_are_an_error_naming_the_key(
    small_cell: Callable[..., Cell],
) -> None:
    config = small_cell("model.primary.kernel=27").config
    with pytest.raises(ValueError, match=r"model\.primary\.kernel"):
        network_size(config)
