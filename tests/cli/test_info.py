"""`capsweep info` as a person and a program see it."""

import json

import pytest

from capsweep import cli
from capsweep.config import compose
from capsweep.training.size import network_size


def test_the_table_has_every_number_and_fits_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (30, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(["info", "model=capsnet", "dataset=mnist"]) == 0
        output = capsys.readouterr().out
        for text in ("8,215,728", "11,520", "5,308,672", "406,405,120", "256x20x20"):
            assert text in output
        assert "…" not in output
    lines = output.splitlines()
    assert max(len(line) for line in lines[:-1]) <= 80
    assert lines[-1].startswith("FLOPs and votes per image.")


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "model=capsnet_small", "--json", "seed=3"]) == 0
    network = json.loads(capsys.readouterr().out)
    cell = compose.cell(["model=capsnet_small", "seed=3"])
    assert network["signature"] == cell.signature
    assert network["parameters"] == network_size(cell.config).parameters
    assert network["flops_per_image"] == network_size(cell.config).flops
    assert network["votes_per_image"] == 2_880
    assert network["layers"][0]["name"] == "conv"
    assert network["layers"][0]["output_shape"] == [64, 20, 20]
    for key in ("parameters", "flops_per_image", "votes_per_image"):
        assert network[key] == sum(layer[key] for layer in network["layers"])
