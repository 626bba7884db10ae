"""The networks of the two papers, each as its preset composes it."""

import pytest

from capsweep.config import compose
from capsweep.training.size import Size, network_size

NO_BIAS = "routing.bias=false"
NO_DECODER = "loss.reconstruction.weight=0"
DECODER = "loss.reconstruction.weight=0.0005"


def _size(preset: str, *overrides: str) -> Size:
    return network_size(compose.cell([f"experiment=paper/{preset}", *overrides]).config)


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


STEREO = "dataset=smallnorb model=matrix_capsnet"
BIAS = "model.primary.bias=true"
MATRIX_PARAMETERS = {
    STEREO: 68_618,
    f"{STEREO} {BIAS}": 68_754,
    f"{STEREO}_big": 316_650,
    f"{STEREO}_big {BIAS}": 317_194,
}


@pytest.mark.parametrize(("line", "parameters"), MATRIX_PARAMETERS.items())
def test_number_of_parameters_of_matrix_capsules_is_that_of_the_paper(
    line: str, parameters: int
) -> None:
    assert network_size(compose.cell(line.split()).config).parameters == parameters


@pytest.mark.parametrize("num_iters", [1, 3])
@pytest.mark.parametrize("weight", [0, 0.0005], ids=["plain", "reconstruction"])
def test_the_small_cnn_costs_as_much_as_the_small_capsnet(num_iters: int, weight: float) -> None:
    capsnet = ["model=capsnet_small", f"routing.num_iters={num_iters}"]
    lines = ["model=cnn_small"], [*capsnet, f"loss.reconstruction.weight={weight}"]
    control, expected = (network_size(compose.cell(line).config).flops for line in lines)
    assert control == pytest.approx(expected, rel=0.1)


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
    assert [network_size(cell.config).parameters for cell in cells] == [4_253_349] * 3
    rest = [{k: v for k, v in c.science.items() if k not in ("dataset", "epochs")} for c in cells]
    assert rest[0] == rest[1] == rest[2]
    assert [cell.science["epochs"] for cell in cells] == [100, 300, 300]
