"""Which code made a number: what decides it counts, and nothing else."""

from pathlib import Path

import pytest

from capsweep.config import code_identity, compose, roots


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of the package that may be edited; gives the identity after an edit."""
    for path in roots.PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(roots.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    monkeypatch.setattr(roots, "PACKAGE", tmp_path)
    cached = ("package", "_modules", "_closure", "_imports", "_hash_of")

    def forget() -> None:
        for name in cached:
            getattr(code_identity, name).cache_clear()

    def identity(file: str = "", old: str = "", new: str = "", *overrides: str) -> str:
        if file:
            path = tmp_path / file
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new, 1))
        forget()
        return code_identity.numerics(config(*overrides))

    yield identity
    monkeypatch.undo()
    forget()


def config(*overrides: str) -> dict:
    """A canonical configuration."""
    return dict(compose.cell(list(overrides)).config)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("model/squash.py", '"""', '"""Other words. '),
        ("model/squash.py", "import", "# a remark\nimport"),
        ("tracking/tracker.py", "PAUSE_SECONDS = 600.0", "PAUSE_SECONDS = 60.0"),
        ("sweep/plan.py", "def make", "def made"),
        ("model/cnn.py", "class ConvNet", "class ConvNetwork"),
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
        ("data/order.py", ">> 1", ">> 2"),
        ("model/losses.py", "import", "EXTRA = 1\nimport"),
        ("training/schedule.py", "max(", "min("),
        ("training/metrics.py", "0.5 / 255", "1.5 / 255"),
        ("data/shifted.py", "labels_N, shift\n", "labels_N, shift + 1\n"),
        ("data/augment.py", "div_(255)", "div_(256)"),
        ("training/fused.py", '"fused": True', '"fused": False'),
        ("training/compiled.py", "dynamic=False", "dynamic=True"),
    ],
)
def test_what_the_cell_runs_through_counts(package, file: str, old: str, new: str) -> None:
    assert package() != package(file, old, new)


def test_what_ends_the_training_counts_where_an_accuracy_ends_it(package) -> None:
    endless, ending = "dataset.validation=9", "stop_accuracy=0.9"
    before = [package("", "", "", endless), package("", "", "", endless, ending)]
    edit = ("training/stop.py", ">=", ">")
    assert package(*edit, endless) == before[0]
    assert package("", "", "", endless, ending) != before[1]


def test_how_other_data_sets_look_does_not_count(package) -> None:
    cropped = ["dataset=cifar10", "model=capsnet"]
    before = package("", "", "", *cropped)
    assert (
        package("data/shifted.py", "labels_N, shift\n", "labels_N, shift + 1\n", *cropped) == before
    )


def test_shards_count_for_the_cells_that_read_them(package) -> None:
    edit = ("data/shards/order.py", "BLOCK = 2500", "BLOCK = 500")
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


def test_a_name_that_a_type_checker_alone_reads_does_not_count(package) -> None:
    before = package()
    edit = ("model/matrix_capsnet.py", "import torch", "import torch\nEXTRA = 1")
    assert package(*edit) == before


def test_what_weight_decay_spares_counts_where_it_spares_anything(package) -> None:
    weights = "optim.decayed=weights"
    before = [package(), package("", "", "", weights)]
    assert package("training/decay.py", "> 1", "> 2") == before[0]
    assert package("", "", "", weights) != before[1]


def test_everything_counts_for_the_identity_of_the_package(package) -> None:
    package()
    before = code_identity.package()
    package("sweep/plan.py", "def make", "def made")
    assert code_identity.package() != before
