"""The networks of the two papers, each as its preset composes it."""

import pytest

from capsweep.config import compose
from capsweep.training.size import Size, measure_size

NO_BIAS = "routing.bias=false"
NO_DECODER = "loss.reconstruction.weight=0"
DECODER = "loss.reconstruction.weight=0.0005"


def _size(preset: str, *overrides: str) -> Size:
    return measure_size(compose.cell([f"experiment=paper/{preset}", *overrides]).config)


MATRIX = "dataset=smallnorb model=matrix_capsnet"
MATRIX_BIAS = "model.primary.bias=true"
# Issue 4's table of networks, and what it says of their variations.
PARAMETERS = {
    "experiment=paper/mnist": 8_215_728,
    f"experiment=paper/mnist {NO_BIAS}": 8_215_568,
    f"experiment=paper/mnist {NO_DECODER}": 6_804_384,
    "experiment=paper/multimnist": 11_361_968,
    "experiment=paper/affnist": 13_475_808,
    "experiment=paper/affnist_baseline": 13_484_826,  # as many within 5 %
    "experiment=paper/cifar10": 22_476_448,
    "experiment=paper/smallnorb": 9_327_184,
    f"experiment=paper/smallnorb {NO_DECODER}": 6_661_200,
    "experiment=paper/svhn": 1_004_976,
    f"experiment=paper/svhn {DECODER}": 4_720_560,
    "experiment=paper/mnist_baseline": 35_445_522,
    "experiment=paper/multimnist_baseline": 24_563_978,
    MATRIX: 68_618,
    f"{MATRIX} {MATRIX_BIAS}": 68_754,
    f"{MATRIX}_big": 316_650,
    f"{MATRIX}_big {MATRIX_BIAS}": 317_194,
    "experiment=resnet model=resnet": 269_722,  # 0.27 M, He et al. 2015, table 6
    # Its features (269,072), primary capsules (295,936) and votes (5,242,880) of Hahn et al. 2019.
    f"experiment=resnet model.head=length loss=margin {NO_DECODER} {NO_BIAS}": 5_807_888,
}


@pytest.mark.parametrize(("line", "parameters"), PARAMETERS.items(), ids=PARAMETERS)
def test_number_of_parameters_is_that_of_the_paper(line: str, parameters: int) -> None:
    assert measure_size(compose.cell(line.split()).config).parameters == parameters


@pytest.mark.parametrize("num_iters", [1, 3])
@pytest.mark.parametrize("weight", [0, 0.0005], ids=["plain", "reconstruction"])
def test_the_small_cnn_costs_as_much_as_the_small_capsnet(num_iters: int, weight: float) -> None:
    capsnet = ["model=capsnet_small", f"routing.num_iters={num_iters}"]
    lines = ["model=cnn_small"], [*capsnet, f"loss.reconstruction.weight={weight}"]
    control, expected = (measure_size(compose.cell(line).config).flops for line in lines)
    assert control == pytest.approx(expected, rel=0.1)


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
    assert [measure_size(cell.config).parameters for cell in cells] == [4_253_349] * 3
    rest = [{k: v for k, v in c.science.items() if k not in ("dataset", "epochs")} for c in cells]
    assert rest[0] == rest[1] == rest[2]
    assert [cell.science["epochs"] for cell in cells] == [100, 300, 300]
