"""`capsweep sweep em_viewpoint`, from smallNORB's six files to the table (section 5.1 of "Matrix
capsules with EM routing").

The pictures are genuine pairs of smallNORB with their own categories. Which viewpoint a picture is
said to have is ours: every viewpoint that the data set has is there, and its category follows from
whether azimuth and elevation are familiar. So each split has categories of its own, which the table
shows: a network is right about all it was trained on, and wrong about most that it was not. (With
AVX-512, matrix capsules take one of three unseen categories for itself, by chance.) †, which the
table prints for a network that never predicts some class, is true here.
"""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from official_files import SMALLNORB, write_matrix

AZIMUTHS, ELEVATIONS = range(0, 360, 20), range(30, 75, 5)  # degrees
FAMILIAR = {"azimuth": {300, 320, 340, 0, 20, 40}, "elevation": {30, 35, 40}}
ANIMAL, HUMAN, AIRPLANE, TRUCK, CAR = range(5)
LIGHTS = {"training": 1, "testing": 2}  # so that the splits of the two files differ in size
View = tuple[int, int, int]  # azimuth, elevation, category


@pytest.fixture
def pairs(shared_data: Path) -> dict[int, np.ndarray]:
    """A genuine pair of each category, from the TFRecord of six, in which each has one at least."""
    file = shared_data / "smallnorb_tiny" / "trainduo.tfrecords"
    if not file.is_file():
        pytest.skip(f"no genuine pairs of smallNORB: {file} is absent; set CAPSWEEP_TEST_DATA")
    content = file.read_bytes()
    # Fields of protocol buffers: 18,432 bytes; a list of one number below 128.
    found = re.findall(rb"\n\x80\x90\x01(.{18432})", content, re.DOTALL)
    categories = re.findall(rb"label\x12\x05\x1a\x03\n\x01(.)", content, re.DOTALL)
    assert len(found) == len(categories) == 6
    return {
        category[0]: np.frombuffer(pair, "u1").reshape(2, 96, 96)
        for pair, category in zip(found, categories, strict=True)
    }


def list_views() -> list[View]:
    """Every viewpoint, with the category that is seen from there."""
    views = []
    for number, (elevation, azimuth) in enumerate((e, a) for e in ELEVATIONS for a in AZIMUTHS):
        match azimuth in FAMILIAR["azimuth"], elevation in FAMILIAR["elevation"]:
            case True, True:
                category = ANIMAL
            case True, False:
                category = HUMAN
            case False, True:
                category = AIRPLANE
            case _:
                category = (TRUCK, CAR)[number % 2]
        views.append((azimuth, elevation, category))
    return views


def write_files(folder: Path, pairs: dict[int, np.ndarray]) -> list[str]:
    """The six files below smallnorb/, as the official ones are; the overrides that declare them."""
    views, declared = list_views(), []
    for file, prefix in SMALLNORB.items():
        rows = [(*view, light) for light in range(LIGHTS[file]) for view in views]
        info = [[4, (el - 30) // 5, az // 10, light] for az, el, _, light in rows]
        matrices = {
            "dat": np.stack([pairs[category] for _, _, category, _ in rows]),
            "cat": np.array([category for _, _, category, _ in rows], "<i4"),
            "info": np.array(info, "<i4"),
        }
        for kind, values in matrices.items():
            declared.append(write_matrix(folder, f"{prefix}-{kind}", values))
    third = len(views) // 3  # of the azimuths, as of the elevations
    counts = {"train": third, "validation": 2 * third, "test": 2 * 2 * third}
    return [*(f"dataset.examples.{name}={n}" for name, n in counts.items()), *declared]


def count_novel(angle: str) -> list[int]:
    """How many test images of each category are at viewpoints that are novel in this angle."""
    at = {"azimuth": 0, "elevation": 1}[angle]
    novel = Counter(view[2] for view in list_views() if view[at] not in FAMILIAR[angle])
    return [LIGHTS["testing"] * novel[category] for category in range(5)]


@pytest.mark.slow
def test_the_table_has_familiar_and_novel_errors_of_networks_equally_good_at_familiar_viewpoints(
    pairs: dict[int, np.ndarray], tmp_path: Path, storage: Path, capsweep
) -> None:
    declared = write_files(tmp_path / "data", pairs)
    places = [f"DATA_DIR={tmp_path / 'data'}", f"STORAGE={storage}", "EXECUTOR=local"]
    small = ["ARMS=cnn,capsnet", "SEEDS=1", "EPOCHS=8", "BATCH=9", "model=matrix_capsnet_tiny"]
    words = [*small, "optim.schedule.warmup=5", "logger=csv", "trainer.accelerator=cpu"]
    ended = capsweep("sweep", "em_viewpoint", *places, *words, *declared)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all 4 cells are finished" in ended.stdout

    (file,) = storage.glob("reports/em_viewpoint-*/table.md")
    header, _, *rows = (
        [field.strip(" *†") for field in line.strip("|").split("|")]
        for line in file.read_text().splitlines()
        if line.startswith("|")
    )
    assert [row[0] for row in rows] == ["cnn", "capsnet"]
    for row in rows:
        errors = dict(zip(header, row, strict=True))
        for dataset in (f"smallnorb_{angle}" for angle in FAMILIAR):
            assert errors[f"{dataset} val/error"] == "0.00 % (1)"  # at familiar viewpoints
            assert errors[dataset] in ("66.67 % (1)", "100.00 % (1)")  # at novel ones

    cells = [json.loads(path.read_text()) for path in storage.glob("ledger/*/*/result.json")]
    shown = sorted(cell["classes"]["examples"] for cell in cells)
    assert shown == sorted(2 * [count_novel(angle) for angle in FAMILIAR])
