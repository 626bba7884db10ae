"""Places are absolute, follow the environment, and are proven writable before anything runs."""

from pathlib import Path

import pytest

from capsweep.config import compose, places
from capsweep.config.places import Places
from capsweep.errors import ConfigError, UserError
from capsweep.storage.files import user_cache_folder


def resolved(*overrides: str) -> Places:
    """The places of a cell."""
    return places.resolve(compose.cell(overrides).config["places"])


def test_places_start_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = tmp_path / "outputs"
    assert resolved() == Places(
        outputs, str(outputs / "data"), str(outputs / "ledger"), str(outputs)
    )


def test_relative_places_become_absolute_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose.cell(["places.storage=here/there", "places.data=../data"]).config
    monkeypatch.chdir("/")
    here = places.resolve(config["places"])
    assert here.storage == tmp_path / "here" / "there"
    assert here.data == str(tmp_path.parent / "data")
    assert Path(here.ledger) == here.storage / "ledger"


def test_the_environment_says_where_data_and_results_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path / "results with blanks"))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    here = resolved()
    assert here.storage == tmp_path / "results with blanks"
    assert Path(here.ledger) == here.storage / "ledger"
    assert here.data == str(tmp_path / "data")


def test_an_empty_environment_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE", "")
    with pytest.raises(ConfigError, match=r"places\.storage is empty"):
        resolved()


def test_prepare_makes_the_folders_we_write_to_and_leaves_nothing_in_them(tmp_path: Path) -> None:
    here = resolved(f"places.storage={tmp_path}/a/b")
    places.prepare(here)
    places.prepare(here)
    folders = {here.storage, Path(here.data)}
    assert set((tmp_path / "a").rglob("*")) == folders
    assert all(path.is_dir() for path in folders)


@pytest.mark.parametrize("kind", ["no folder can be made", "a file is there"])
def test_storage_that_cannot_be_written_is_named_with_its_cure(kind: str, tmp_path: Path) -> None:
    storage = Path("/proc/capsweep") if kind == "no folder can be made" else tmp_path / "file"
    if storage.parent == tmp_path:
        storage.write_text("in the way")
    cure = r"(cannot be .*STORAGE=|is no folder; name another)"
    with pytest.raises(UserError, match=rf"^places\.storage.{{1,2}}{storage}.* {cure}"):
        places.prepare(resolved(f"places.storage={storage}"))


URL = "s3://bucket/x?region=eu-west-1"


def test_an_object_store_holds_ledger_data_and_memory_and_a_folder_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STORAGE", URL)
    data, ledger = (f"s3://bucket/x/{name}?region=eu-west-1" for name in ("data", "ledger"))
    assert resolved() == Places(tmp_path / "outputs", data, ledger, URL)
    places.prepare(resolved())
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def on_node(*overrides: str) -> Places:
    """The places of a cell on a node."""
    return places.on_node(compose.cell(overrides).config)


def test_on_a_node_what_needs_a_folder_is_in_its_cache() -> None:
    here = on_node(f"places.storage='{URL}'")
    assert here.storage == user_cache_folder() / "outputs"
    assert here.ledger == "s3://bucket/x/ledger?region=eu-west-1"
    assert here.kept == URL


def test_a_node_sees_the_same_storage_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARED", str(tmp_path))
    typed = f"places.storage={tmp_path}/typed"
    node = "cluster.node.storage=$SHARED/fsx"
    fsx = tmp_path / "fsx"
    assert on_node(typed) == resolved(typed)
    assert on_node(typed, node) == Places(fsx, str(fsx / "data"), str(fsx / "ledger"), str(fsx))
    apart = on_node(typed, node, "places.ledger=/apart", "cluster.node.data=s3://bucket/data")
    assert apart == Places(fsx, "s3://bucket/data", "/apart", str(fsx))
    scratch = on_node(f"places.storage='{URL}'", node)  # the store is the same everywhere
    assert scratch.ledger.startswith("s3://bucket/x/ledger")
    assert (scratch.storage, scratch.kept) == (fsx, URL)


def test_what_is_no_path_on_the_node_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.node\.data=\$NOWHERE_AT_ALL/x: .*node"):
        on_node("cluster.node.data=$NOWHERE_AT_ALL/x")
