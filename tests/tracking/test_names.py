"""Names of W&B runs compare at a glance, and no two cells of a sweep share one."""

from pathlib import Path

import pytest

from capsweep.config import compose, package_files
from capsweep.config.overrides import Override
from capsweep.sweep import expand, spec
from capsweep.tracking import labels as names

SWEEPS = sorted(path.stem for path in package_files.find_folder("sweeps").glob("*.yaml"))


@pytest.mark.parametrize("sweep", SWEEPS)
def test_different_cells_of_a_sweep_have_different_names(sweep: str) -> None:
    loaded = spec.load(sweep)
    points = expand.expand_sweep(loaded)
    labels = expand.make_labels(loaded, points)
    assert set(labels) == {point.cell.signature for point in points}
    assert len({one.name for one in labels.values()}) == len(labels)
    assert max(len(one.name) for one in labels.values()) <= names.LONGEST
    assert {one.group for one in labels.values()} == {sweep}
    assert {one.notes for one in labels.values()} == {loaded.question}
    assert all(set(one.tags) >= {sweep} for one in labels.values())


def test_a_name_says_arm_iterations_reconstruction_and_seed() -> None:
    loaded = spec.load("ablation")
    labels = expand.make_labels(loaded, expand.expand_sweep(loaded)).values()
    found = {one.name for one in labels}
    assert {"cnn · seed 2", "capsnet · T=3 · recon · seed 0"} <= found
    assert {"capsnet · T=1 · no recon · seed 1", "em · T=2 · no recon · seed 0"} <= found
    assert {one.job_type for one in labels} == {"cnn", "capsnet", "control", "em"}
    tags = {one.name: one.tags for one in labels}["capsnet · T=3 · recon · seed 0"]
    assert tags == ("ablation", "digits", "capsnet_small", "dynamic")


def test_weights_of_reconstruction_are_said_where_they_differ(tmp_path: Path) -> None:
    text = (package_files.find_folder("sweeps") / "ablation.yaml").read_text()
    file = tmp_path / "weights.yaml"
    file.write_text(text.replace("weight: [0, 0.0005]", "weight: [0, 0.0005, 0.01]"))
    loaded = spec.load(str(file))
    found = {one.name for one in expand.make_labels(loaded, expand.expand_sweep(loaded)).values()}
    assert {"capsnet · T=3 · recon 0.01 · seed 0", "capsnet · T=3 · no recon · seed 0"} <= found


def test_weights_that_a_search_draws_are_said(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(
        "question: q\nkind: search\nbase: []\nseeds: [0]\n"
        "search: {metric: val/error, trials: 2}\n"
        'arms: {a: {space: {loss.reconstruction.weight: "interval(0.001, 0.01)"}}}\n'
    )
    loaded = spec.load(str(file))
    found = set()
    for weight in (0.002, 0.004):  # each trial is known by itself alone
        place = (Override("loss.reconstruction.weight", (weight,)),)
        point = expand.make_point(loaded, loaded.arms[0], place, 0)
        found |= {one.name for one in expand.make_labels(loaded, [point]).values()}
    assert found == {f"a · T=3 · recon {weight} · seed 0" for weight in (0.002, 0.004)}


def test_further_axes_are_in_the_name(tmp_path: Path) -> None:
    text = (package_files.find_folder("sweeps") / "ablation.yaml").read_text()
    file = tmp_path / "axes.yaml"
    file.write_text(text.replace("    space:\n", "    space:\n      epochs: [1, 2]\n", 1))
    loaded = spec.load(str(file))
    found = {one.name for one in expand.make_labels(loaded, expand.expand_sweep(loaded)).values()}
    assert {f"capsnet · T=3 · recon · epochs={n} · seed 0" for n in (1, 2)} <= found


def test_a_name_that_is_too_long_ends_with_the_signature() -> None:
    cell = compose.cell([])
    place = [f"some.key_{n}=1" for n in range(20)]
    name = names.run_name(cell.config, "capsnet", place, signature=cell.signature)
    assert len(name) == names.LONGEST
    assert name.endswith(f"… {cell.signature}")


def test_a_cell_run_by_itself_is_called_after_its_model_and_its_settings() -> None:
    asked = ["model=capsnet_small", "optim.optimizer.lr=0.01", "logger=csv", "seed=4"]
    labels = names.labels_of(compose.cell(asked))
    assert labels.name == "capsnet_small · T=3 · recon · optim.optimizer.lr=0.01 · seed 4"
    assert (labels.group, labels.job_type) == ("train", "capsnet_small")
