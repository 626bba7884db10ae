"""Questions are listed, answers have a verdict, and no number of the README is typed."""

import re
from pathlib import Path

import pytest

from capsweep.report import publish

TABLES = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


@pytest.fixture
def answers(repository: Path) -> dict[str, str]:
    """`sweeps/NAME.md` by name."""
    found = {path.stem: path.read_text() for path in repository.glob("sweeps/*.md")}
    return {name: text for name, text in found.items() if name != "README"}


def test_every_question_is_listed(repository: Path) -> None:
    listed = (repository / "sweeps" / "README.md").read_text()
    questions = {path.name for path in repository.glob("sweeps/*.yaml")}
    assert questions == set(re.findall(r"`(\w+\.yaml)` \|", listed))


def test_every_answer_has_a_verdict_by_hand(answers: dict[str, str]) -> None:
    assert answers
    for name, text in answers.items():
        _, _, verdict = text.partition("## Verdict\n")
        assert verdict.strip(), name
        assert publish.VERDICT not in verdict, name


def test_results_of_the_readme_are_tables_that_a_report_published(
    repository: Path, answers: dict[str, str]
) -> None:
    _, _, rest = (repository / "README.md").read_text().partition("\n## Results\n")
    tables = TABLES.findall(rest.partition("\n## ")[0])
    begin, end = publish.section_markers(publish.NAME)
    published = [text.partition(begin)[2].partition(end)[0] for text in answers.values()]
    assert tables
    for table in tables:
        assert any(table in section for section in published), table
