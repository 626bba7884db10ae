"""Whose code runs: a commit, and whether anything differs from it."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsweep.config import package_files

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b.example")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of one commit."""
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "one.yaml").write_text("question: a\n")
    (tmp_path / "sweeps" / "one.md").write_text("# one\n")
    for command in (["init", "-q"], ["add", "."], [*AUTHOR, "commit", "-qm", "one"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(package_files, "CHECKOUT", tmp_path)
    package_files.describe_code.cache_clear()
    yield tmp_path
    package_files.describe_code.cache_clear()


def add(repository: Path) -> None:
    """A question that was not there."""
    (repository / "sweeps" / "two.yaml").write_text("question: b\n")


def edit(repository: Path) -> None:
    """Another question."""
    (repository / "sweeps" / "one.yaml").write_text("question: b\n")


def publish(repository: Path) -> None:
    """What `make report PUBLISH=1` does: a page is renewed, and another is new."""
    (repository / "sweeps" / "one.md").write_text("# one\n\nanswer\n")
    (repository / "sweeps" / "two.md").write_text("# two\n")


@pytest.mark.parametrize(
    ("change", "dirty"), [(None, False), (add, True), (edit, True), (publish, False)]
)
def test_changes_that_are_not_committed_are_told_but_those_of_pages(
    repository: Path, change: Callable[[Path], None] | None, dirty: bool
) -> None:
    if change is not None:
        change(repository)
    found = package_files.describe_code()
    assert len(found["commit"]) == 40
    assert found["dirty"] is dirty


def test_outside_of_a_checkout_neither_is_known(repository: Path) -> None:
    (repository / ".git").rename(repository / "not-git")
    found = package_files.describe_code()
    assert (found["commit"], found["dirty"]) == (None, None)


def test_without_git_neither_is_known(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-is-here"))
    found = package_files.describe_code()
    assert (found["commit"], found["dirty"]) == (None, None)
