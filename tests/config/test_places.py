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


def test_relative_places_become_absolute_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = str(tmp_path / "outputs")
    assert resolved() == Places(Path(outputs), f"{outputs}/data", f"{outputs}/ledger", outputs)
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
    assert Path(here.ledger) == tmp_path / "results with blanks" / "ledger"
    assert here.data == str(tmp_path / "data")
    monkeypatch.setenv("STORAGE", "")
    with pytest.raises(ConfigError, match=r"places\.storage is empty"):
        resolved()


def test_prepare_makes_the_folders_we_write_to_and_leaves_nothing_in_them(tmp_path: Path) -> None:
    here = resolved(f"places.storage={tmp_path}/a/b")
    places.prepare(here)
    folders = {here.storage, Path(here.data)}
    assert set((tmp_path / "a").rglob("*")) == folders
    assert all(path.is_dir() for path in folders)


def test_storage_that_cannot_be_written_is_named_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^places\.storage: /proc/capsweep cannot .*STORAGE="):
        places.prepare(resolved("places.storage=/proc/capsweep"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^places\.storage.*file is not a folder; choose another"):
        resolved(f"places.storage={tmp_path}/file")


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
    return places.resolve_on_node(compose.cell(overrides).config)


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
    assert scratch.ledger == "s3://bucket/x/ledger?region=eu-west-1"
    assert (scratch.storage, scratch.shared) == (fsx, URL)
    assert on_node(f"places.storage='{URL}'").storage == user_cache_folder() / "outputs"
    with pytest.raises(ConfigError, match=r"^cluster\.node\.data=\$NOWHERE_AT_ALL/x: .*node"):
        on_node("cluster.node.data=$NOWHERE_AT_ALL/x")
