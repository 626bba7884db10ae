"""Rules that no tool holds: of files, of questions and answers, and of the README's tables."""

import re
import subprocess
from pathlib import Path

import pytest

from capsweep.report import publish

REPOSITORY = Path(__file__).resolve().parents[2]
# In two parts, so that this file obeys its own rule.
MACHINES = [
    f"/{head}{tail}/".encode() for head, tail in (("wo", "rk"), ("ro", "ot"), ("Us", "ers"))
]


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """Every file of the repository."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_file_names_a_folder_of_a_machine(files: list[Path]) -> None:
    texts = {path.relative_to(REPOSITORY): path.read_bytes() for path in files}
    assert [p for p, text in texts.items() if any(name in text for name in MACHINES)] == []


def test_source_files_can_be_read_in_one_sitting() -> None:
    sources = sorted((REPOSITORY / "src").rglob("*.py"))
    lengths = {path.name: len(path.read_text().splitlines()) for path in sources}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


TABLES = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


@pytest.fixture
def answers() -> dict[str, str]:
    """`sweeps/NAME.md` by name."""
    texts = {path.stem: path.read_text() for path in REPOSITORY.glob("sweeps/*.md")}
    return {name: text for name, text in texts.items() if name != "README"}


def test_every_question_is_listed() -> None:
    listed = (REPOSITORY / "sweeps" / "README.md").read_text()
    questions = {path.name for path in REPOSITORY.glob("sweeps/*.yaml")}
    assert questions == set(re.findall(r"`(\w+\.yaml)` \|", listed))


def test_every_answer_has_a_verdict_by_hand(answers: dict[str, str]) -> None:
    assert answers
    for name, text in answers.items():
        _, _, verdict = text.partition("## Verdict\n")
        assert verdict.strip(), name
        assert publish.VERDICT not in verdict, name


def test_results_of_the_readme_are_tables_that_a_report_published(
    answers: dict[str, str],
) -> None:
    _, _, rest = (REPOSITORY / "README.md").read_text().partition("\n## Results\n")
    tables = TABLES.findall(rest.partition("\n## ")[0])
    begin, end = publish.section_markers(publish.NAME)
    published = [text.partition(begin)[2].partition(end)[0] for text in answers.values()]
    assert tables
    for table in tables:
        assert any(table in section for section in published), table
