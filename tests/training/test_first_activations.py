"""How active every layer is in the first step is kept with the cell."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from capsweep.config import compose, places
from capsweep.training.callbacks import QUANTILES, measure_quantiles
from capsweep.training.run import run

TINY = ["dataset=digits", "debug=fast", "batch_size=8"]


@pytest.mark.parametrize(
    ("choices", "layers"),
    [
        (["model=matrix_capsnet_tiny"], {"primary", "capsules.0", "capsules.1", "classes"}),
        (["model=matrix_capsnet_tiny", "routing=dynamic"], {"primary", "classes"}),
        (["model=capsnet_small"], {"primary", "classes"}),
        (["model=cnn_small"], set()),
    ],
    ids=["matrix", "matrix-dynamic", "vector", "cnn"],
)
def test_the_result_has_the_quantiles_of_every_layer_of_capsules(
    choices: list[str], layers: set[str], tmp_path: Path
) -> None:
    cell = compose.cell([*TINY, *choices, f"places.storage={tmp_path}"])
    here = places.resolve(cell.config["places"])
    found = run(cell, here)["first_activations"]
    assert layers <= set(found)
    assert bool(layers) == bool(found)
    for layer in found.values():
        assert list(layer) == ["q0", "q10", "q25", "q50", "q75", "q90", "q100"]
        assert all(low <= high for low, high in pairwise(layer.values()))
        assert 0 <= layer["q0"] <= layer["q100"] <= 1


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 2**24 + 1])
def test_quantiles_are_of_any_number_of_capsules(size: int) -> None:
    values = torch.arange(size).remainder(5).float()  # of the last, too many for torch.quantile
    expected = torch.quantile(values[: 2**24], torch.tensor(QUANTILES)).tolist()
    assert list(measure_quantiles(values).values()) == pytest.approx(expected, abs=1e-6)


def test_the_stabilised_network_starts_neither_silent_nor_saturated(tmp_path: Path) -> None:
    cell = compose.cell([*TINY, "experiment=em/digits", f"places.storage={tmp_path}"])
    found = run(cell, places.resolve(cell.config["places"]))["first_activations"]
    assert {"primary", "capsules.0", "capsules.1", "classes"} <= set(found)
    for layer in found.values():
        assert layer["q10"] < 0.7
        assert layer["q90"] > 0.3
        assert layer["q90"] - layer["q10"] > 0.2
