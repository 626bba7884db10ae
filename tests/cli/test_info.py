"""`capsweep info` as a person and a program see it."""

import json

import pytest

from capsweep import cli
from capsweep.config import compose
from capsweep.training.size import network_size


def test_the_table_has_every_number_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert cli.main(["info", "model=capsnet", "dataset=mnist"]) == 0
    said = capsys.readouterr().out
    for text in ("8,215,728", "11,520", "5,308,672", "406,405,120", "256x20x20"):
        assert text in said
    assert "…" not in said


def test_the_table_fits_a_terminal_of_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["info", "model=capsnet", "dataset=mnist"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines[:-1]) <= 80
    assert lines[-1].startswith("FLOPs and votes per image.")


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json", "model=capsnet_small", "seed=3"]) == 0
    told = json.loads(capsys.readouterr().out)
    cell = compose.cell(["model=capsnet_small", "seed=3"])
    assert told["signature"] == cell.signature
    assert told["parameters"] == network_size(cell.config).parameters
    assert told["flops_per_image"] == network_size(cell.config).flops
    assert told["votes_per_image"] == 2_880
    assert told["layers"][0]["name"] == "conv"
    assert told["layers"][0]["output_shape"] == [64, 20, 20]
    for key in ("parameters", "flops_per_image", "votes_per_image"):
        assert told[key] == sum(layer[key] for layer in told["layers"])


def test_options_stand_anywhere_and_no_override_is_the_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["info", "model=cnn_small", "--json", "epochs=3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["signature"] == compose.cell(["model=cnn_small", "epochs=3"]).signature
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signature"] == compose.cell([]).signature


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("routing.num_iters=0", "routing.num_iters must be >= 1, got 0"),
        ("routing.num_itres=3", "did you mean routing.num_iters"),
        ("model._target_=os.system", "may not be called"),
        ("model.conv.kernel=25", "model.conv.kernel"),
        ("seed=0,1", "seed"),
    ],
)
def test_a_wrong_override_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], override: str, names: str
) -> None:
    assert cli.main(["info", override]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert names in printed.err


def test_children_without_a_parent_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "model=matrix_capsnet", "dataset=smallnorb"]) == 0
    assert "capsules.0: 216 children have no parent" in capsys.readouterr().out
    assert cli.main(["info", "model=matrix_capsnet", "dataset=smallnorb", "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    counted = {layer["name"]: layer["children_without_parent"] for layer in layers}
    assert counted["capsules.0"] == 27 * 8
    assert sum(counted.values()) == 27 * 8
