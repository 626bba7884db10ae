"""Which code made a number: what decides it counts, and nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    cached = (
        "package",
        "_read_modules",
        "_parse_modules",
        "_find_closure",
        "_list_imports",
        "_hash_of",
    )

    def forget() -> None:
        for name in cached:
            getattr(code_identity, name).cache_clear()

    def identity(file: str = "", old: str = "", new: str = "", *overrides: str) -> str:
        if file:
            path = copy / file
            before = path.read_text()
            assert old in before
            edited.setdefault(path, before)
            path.write_text(before.replace(old, new, 1))
        forget()
        return code_identity.numerics(config(*overrides))

    yield identity
    for path, before in edited.items():
        path.write_text(before)
    monkeypatch.undo()
    forget()


def config(*overrides: str) -> dict:
    """A canonical configuration."""
    return dict(compose.cell(list(overrides)).config)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("model/capsules.py", '"""', '"""Other words. '),
        ("model/capsules.py", "import", "# a remark\nimport"),
        ("tracking/tracker.py", "PAUSE_SECONDS = 600.0", "PAUSE_SECONDS = 60.0"),
        ("sweep/plan.py", "def make", "def made"),
        ("model/cnn.py", "class ConvNet", "class ConvNetwork"),
        ("training/provenance.py", '"h5py",', ""),
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
        ("model/routing/dynamic.py", "import torch", "import torch\nEXTRA = 1"),
        ("data/randomness.py", ">> 1", ">> 2"),
        ("model/losses.py", "import", "EXTRA = 1\nimport"),
        ("training/build.py", "max(", "min("),
        ("training/metrics.py", "0.5 / 255", "1.5 / 255"),
        ("data/image_batches.py", "labels_N, shift\n", "labels_N, shift + 1\n"),
        ("data/batches.py", "div_(255)", "div_(256)"),
        ("training/build.py", '"fused": True', '"fused": False'),
        ("training/devices.py", "dynamic=False", "dynamic=True"),
        ("training/build.py", "to_channels_last(_instantiate(", "(_instantiate("),
        ("training/fit.py", 'config["limit_batches"] or 1.0', 'config["limit_batches"] or 0.5'),
        ("training/checkpoint.py", "trainer.should_stop or", "not"),
        ("training/module.py", "CHECK_EVERY = 100", "CHECK_EVERY = 10"),
        ("training/devices.py", "max(1,", "max(2,"),
        ("training/ddp.py", "broadcast_buffers=False", "broadcast_buffers=True"),
        ("training/first_activations.py", '"force_eager"', '"default"'),
    ],
)
def test_what_the_cell_runs_through_counts(package, file: str, old: str, new: str) -> None:
    assert package() != package(file, old, new)


def test_shards_count_for_the_cells_that_read_them(package) -> None:
    edit = ("shards/groups.py", "BLOCK = 2500", "BLOCK = 500")
    on_shards = "dataset=multimnist_shards"
    without, with_shards = package(), package("", "", "", on_shards)
    assert package(*edit) == without
    assert package("", "", "", on_shards) != with_shards


def test_routing_does_not_touch_a_network_that_does_not_route(package) -> None:
    cnn = "model=cnn_small"
    before = package("", "", "", cnn)
    edit = ("model/routing/dynamic.py", "import torch", "import torch\nEXTRA = 1")
    assert package(*edit, cnn) == before
    assert package("model/convolution.py", "channels_last)", "contiguous_format)", cnn) != before


IN_DYNAMIC = ("model/routing/dynamic.py", "import torch", "import torch\nEXTRA = 1")
IN_EM = ("model/routing/em.py", "import torch", "import torch\nEXTRA = 1")


@pytest.mark.parametrize("model", ["capsnet_small", "matrix_capsnet"])
@pytest.mark.parametrize(
    ("routing", "own", "of_another"),
    [("dynamic", IN_DYNAMIC, IN_EM), ("em", IN_EM, IN_DYNAMIC)],
    ids=["dynamic", "em"],
)
def test_a_routing_variant_leaves_the_cells_of_the_others_alone(
    package, model: str, routing: str, own: tuple[str, str, str], of_another: tuple[str, str, str]
) -> None:
    cell = [f"model={model}", f"routing={routing}"]
    before = package("", "", "", *cell)
    assert package(*of_another, *cell) == before
    assert package(*own, *cell) != before


def test_what_is_said_to_decide_no_numbers_is_there() -> None:
    assert {*code_identity.APART, *code_identity.CHOSEN, code_identity.LOOKS} <= set(
        code_identity._read_modules()
    )


# An edit during a run: of a module that is imported already, and of one that is imported later.
EDITED = """
import sys
from capsweep.config import code_identity, package_files
def edit():
    path = package_files.PACKAGE / "data" / "randomness.py"
    path.write_text(path.read_text() + "EXTRA = 1\\n")
def identity():
    code_identity._hash_of.cache_clear()
    return code_identity._hash_of(frozenset({"capsweep.data.randomness"}))
before = identity()
if sys.argv[1] == "imported":
    import capsweep.data.randomness
    code_identity.check_imported()
edit()
import capsweep.data.randomness
assert identity() == before
code_identity.check_imported()
"""


@pytest.mark.parametrize("when", ["imported", "later"])
def test_code_is_what_was_imported_and_not_what_lies_there_now(tmp_path: Path, when: str) -> None:
    copy = tmp_path / "src" / "capsweep"
    shutil.copytree(package_files.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    ended = subprocess.run(
        [sys.executable, "-c", EDITED, when],
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode == 0) == (when == "imported"), ended.stderr
    if when == "later":
        assert f"CodeChangedError: {copy / 'data' / 'randomness.py'} has changed" in ended.stderr


def test_everything_counts_for_the_identity_of_the_package(package) -> None:
    package()
    before = code_identity.package()
    package("sweep/plan.py", "def make", "def made")
    assert code_identity.package() != before
