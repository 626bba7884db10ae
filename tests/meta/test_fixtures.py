"""What every test is given."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same folder for each test, removed after it: what older versions of pytest give to tests
    whose names begin alike.
    """
    folder = tmp_path_factory.getbasetemp() / "given-again"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("time", ["first", "second"])
def test_a_folder_that_is_given_again_is_empty_and_has_no_neighbour(
    time: str, tmp_path: Path
) -> None:
    assert not [*tmp_path.iterdir()]
    assert [*tmp_path.parent.glob(f"{tmp_path.name}*")] == [tmp_path]
