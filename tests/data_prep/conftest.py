"""The command that makes data sets, small ones of the embedded digits."""

from pathlib import Path

import pytest
from made_folders import Make

from capsweep import cli
from capsweep.data_prep.making import plan


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One shard tells enough of the disk."""
    monkeypatch.setattr(plan, "SECONDS", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a data set that is not made yet."""
    return tmp_path / "data" / "pairs"


@pytest.fixture
def make(folder: Path, quick: None) -> Make:
    """`capsweep data make multimnist` in this process: 2,874 examples in four shards, 720 in two.

    Returns its exit status.
    """

    def call(*arguments: str) -> int:
        given = {word.split("=")[0] for word in arguments}
        small = {"--pairs": "2", "--shards": "4", "--storage": str(folder), "--executor": "local"}
        words = [f"{name}={value}" for name, value in small.items() if name not in given]
        source = [] if "dataset.source" in given else ["dataset.source=digits"]
        words = [
            word for word in words if not ("--store=virtual" in arguments and "shards" in word)
        ]
        return cli.main(["data", "make", "multimnist", *source, *words, *arguments])

    return call
