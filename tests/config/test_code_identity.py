"""Which code made a number: what decides it counts, and nothing else."""

import shutil
from pathlib import Path

import pytest
from caches import forget

from capsweep.config import code_identity, compose, package_files


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package."""
    folder = tmp_path_factory.mktemp("package") / "capsweep"
    return shutil.copytree(
        package_files.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
    )


@pytest.fixture
def package(copy: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of the package that may be edited; gives the identity after an edit."""
    monkeypatch.setattr(package_files, "PACKAGE", copy)
    edited: dict[Path, str] = {}

    def identity(file: str = "", old: str = "", new: str = "", *overrides: str) -> str:
        if file:
            path = copy / file
            before = path.read_text()
            assert old in before
            edited.setdefault(path, before)
            path.write_text(before.replace(old, new, 1))
        forget(code_identity)
        return code_identity.hash_numerics(compose.cell(list(overrides)).config)

    yield identity
    for path, before in edited.items():
        path.write_text(before)
    monkeypatch.undo()
    forget(code_identity)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("model/capsules.py", '"""', '"""Other words. '),
        ("tracking/tracker.py", "KILL_SECONDS = 0.5", "KILL_SECONDS = 0.6"),
        ("model/cnn.py", "class ConvNet", "class ConvNetwork"),
        ("training/provenance.py", " h5py", ""),
        ("training/run.py", "gc.collect()", "pass"),
        ("model/matrix_capsnet.py", "import torch", "import torch\nEXTRA = 1"),
    ],
)
def test_words_logistics_and_other_networks_do_not_count(
    package, file: str, old: str, new: str
) -> None:
    assert package() == package(file, old, new)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("data/batches.py", ">> 1", ">> 2"),
        ("model/losses.py", "import", "EXTRA = 1\nimport"),
        ("training/step.py", "0.5 / 255", "1.5 / 255"),
        ("data/image_batches.py", "self.shift = shift", "self.shift = shift + 1"),
        ("data/batches.py", "div_(255)", "div_(256)"),
        ("training/build.py", "set_weight_layout(network, torch.channels_last)", "set_method"),
        ("training/module.py", 'config["limit_batches"] or 1.0', 'config["limit_batches"] or 0.5'),
        ("training/callbacks.py", "ROUNDING = 1e-9", "ROUNDING = 1e-8"),
    ],
)
def test_what_the_cell_runs_through_counts(package, file: str, old: str, new: str) -> None:
    assert package() != package(file, old, new)


def insert_into(file: str) -> tuple[str, str, str]:
    """An edit that changes the code of a module."""
    return file, "import torch", "import torch\nEXTRA = 1"


DYNAMIC, EM = insert_into("model/routing/dynamic.py"), insert_into("model/routing/em.py")
SHARDS = ("shards/batches.py", "BLOCK = 2500", "BLOCK = 500")


@pytest.mark.parametrize(
    ("cell", "own", "of_another"),
    [
        ("model=capsnet_small routing=dynamic", DYNAMIC, EM),
        ("model=matrix_capsnet routing=dynamic", DYNAMIC, EM),
        ("model=matrix_capsnet routing=em", EM, DYNAMIC),
        ("model=cnn_small", insert_into("model/convolution.py"), DYNAMIC),
        ("dataset=multimnist_shards", SHARDS, EM),
        ("dataset=digits", DYNAMIC, SHARDS),
    ],
)
def test_a_cell_is_left_alone_by_what_it_does_not_reach(
    package, cell: str, own: tuple[str, str, str], of_another: tuple[str, str, str]
) -> None:
    before = package("", "", "", *cell.split())
    assert package(*of_another, *cell.split()) == before
    assert package(*own, *cell.split()) != before
