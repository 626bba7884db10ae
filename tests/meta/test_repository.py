"""Rules of the repository that no tool holds."""

import subprocess
from pathlib import Path

import pytest

# In two parts, so that this file obeys its own rule.
MACHINES = [f"/{head}{tail}/" for head, tail in (("wo", "rk"), ("ro", "ot"), ("Us", "ers"))]
MAX_LINES = 400


@pytest.fixture(scope="module")
def files(repository: Path) -> list[Path]:
    """Every file of the repository."""
    if not (repository / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    paths = [repository / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_file_names_a_folder_of_a_machine(files: list[Path], repository: Path) -> None:
    assert len(files) > 50
    found = []
    for path in files:
        text = path.read_bytes().decode(errors="replace")
        lines = enumerate(text.splitlines(), start=1)
        place = path.relative_to(repository)
        found += [f"{place}:{n}" for n, line in lines if any(name in line for name in MACHINES)]
    assert found == []


def test_source_files_can_be_read_in_one_sitting(repository: Path) -> None:
    sources = sorted((repository / "src").rglob("*.py"))
    assert len(sources) > 30
    lengths = {path.name: len(path.read_text().splitlines()) for path in sources}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_large_file_is_in_the_repository(files: list[Path], repository: Path) -> None:
    large = [path for path in files if path.stat().st_size > 1_000_000]
    assert [str(path.relative_to(repository)) for path in large] == []
