"""smallNORB and its novel viewpoints, as far as a plan knows them."""

import pytest

from capsweep.config import compose
from capsweep.config.validation import VIEWPOINTS, count_validation_examples
from capsweep.errors import ConfigError

DATASETS = ("smallnorb_azimuth", "smallnorb_elevation")
PAIRS = 24_300  # in each of the two files: 5 categories x 5 toys x 9 elevations x 18 azimuths x 6

every_dataset = pytest.mark.parametrize("dataset", DATASETS)


@every_dataset
def test_declared_counts_follow_from_the_viewpoints(dataset: str) -> None:
    config = compose.cell([f"dataset={dataset}"]).config["dataset"]
    all_codes = VIEWPOINTS[config["reader"]["viewpoint"]]
    each, rest = divmod(PAIRS, len(all_codes))
    familiar = each * len(config["reader"]["familiar"])
    assert rest == 0
    assert familiar == 8_100
    assert config["examples"] == {"train": 8_100, "validation": 8_100, "test": 16_200}


def test_familiar_viewpoints_are_those_of_the_paper() -> None:
    azimuth, elevation = (
        compose.cell([f"dataset={name}"]).config["dataset"]["reader"] for name in DATASETS
    )
    assert [10 * code for code in azimuth["familiar"]] == [300, 320, 340, 0, 20, 40]
    assert [30 + 5 * code for code in elevation["familiar"]] == [30, 35, 40]
    novel = sorted({*VIEWPOINTS["azimuth"]} - {*azimuth["familiar"]})
    assert [10 * code for code in novel] == list(range(60, 281, 20))


@every_dataset
def test_validation_is_by_the_familiar_test_images(dataset: str) -> None:
    cell = compose.cell([f"dataset={dataset}", "stop_accuracy=0.963"])
    assert count_validation_examples(cell.config["dataset"]) == 8_100
    with pytest.raises(ConfigError, match=rf"validation must be 0 for dataset={dataset}, got 500"):
        compose.cell([f"dataset={dataset}", "dataset.validation=500"])


@pytest.mark.parametrize("codes", ["[]", "[1]", "[0,0]", "[0,36]", "[-2]"])
def test_familiar_viewpoints_are_codes_each_once(codes: str) -> None:
    said = r"dataset\.reader\.familiar must be some of 0, 2, .*, 34, each once"
    with pytest.raises(ConfigError, match=said):
        compose.cell(["dataset=smallnorb_azimuth", f"dataset.reader.familiar={codes}"])
