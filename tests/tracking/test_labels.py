"""Names of W&B runs compare at a glance, and no two cells of a sweep share one."""

import pytest

from capsweep.config import compose, package_files
from capsweep.sweep import choices, expand, spec
from capsweep.tracking import content as labels_module
from capsweep.tracking.content import Labels

SWEEPS = sorted(path.stem for path in package_files.find_folder("sweeps").glob("*.yaml"))


def labels_of_sweep(sweep: str, **words: str) -> dict[str, Labels]:
    loaded = choices.load_sweep(sweep, words)
    return expand.make_labels(loaded, expand.expand_sweep(loaded))


@pytest.mark.parametrize("sweep", SWEEPS)
def test_different_cells_of_a_sweep_have_different_names(sweep: str) -> None:
    labels = labels_of_sweep(sweep).values()
    assert len({one.name for one in labels}) == len(labels)
    assert max(len(one.name) for one in labels) <= labels_module.LONGEST
    assert {(one.group, one.notes) for one in labels} == {(sweep, spec.load(sweep).question)}
    assert all(set(one.tags) >= {sweep} for one in labels)


def test_a_name_says_arm_iterations_reconstruction_and_seed() -> None:
    labels = {one.name: one for one in labels_of_sweep("ablation").values()}
    assert {"cnn · seed 2", "capsnet · T=1 · no recon · seed 1"} <= set(labels)
    assert {one.job_type for one in labels.values()} == {"cnn", "capsnet"}
    tags = labels["capsnet · T=3 · recon · seed 0"].tags
    assert tags == ("ablation", "digits", "capsnet_small", "dynamic")


def test_what_the_command_line_changed_is_in_names_and_tags() -> None:
    typed = {"SEEDS": "1", "EPOCHS": "1"}, ["limit_batches=2", "trainer.threads=2"]
    sweep = choices.load_sweep("ablation", *typed)
    for one in expand.make_labels(sweep, expand.expand_sweep(sweep)).values():
        assert one.tags[:5] == ("ablation", "EPOCHS=1", "SEEDS=1", "limit_batches=2", "limited")
        assert one.name.endswith(" · epochs=1 · limit_batches=2 · seed 0")


def test_axes_and_weights_that_differ_are_in_the_name() -> None:
    labels = labels_of_sweep("ablation", RECON="0.0005,0.01", EPOCHS="1,2").values()
    assert "capsnet · T=3 · recon 0.01 · epochs=1 · seed 0" in {one.name for one in labels}


def test_a_cell_run_by_itself_is_called_after_its_model_and_its_settings() -> None:
    overrides = ["model=capsnet_small", "optim.optimizer.lr=0.01", "logger=csv", "seed=4"]
    labels = labels_module.labels_of(compose.cell(overrides))
    assert labels.name == "capsnet_small · T=3 · recon · optim.optimizer.lr=0.01 · seed 4"
    assert (labels.group, labels.job_type) == ("train", "capsnet_small")
