"""Rules that no tool holds: of files, of questions and answers, and of the README's tables."""

import ast
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


def test_no_text_is_read_or_written_in_the_encoding_of_a_locale() -> None:
    sources = [path for top in ("src", "data_prep") for path in (REPOSITORY / top).rglob("*.py")]
    assert len(sources) > 100
    calls = {path.name: find_locale_encodings(path.read_text(encoding="utf-8")) for path in sources}
    assert {name: lines for name, lines in calls.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    ["path.read_text(errors=None)", "open(path)", 'path.open("a")', "run(words, text=True)"],
)
def test_a_text_in_the_encoding_of_a_locale_is_found(text: str) -> None:
    assert find_locale_encodings(text) == [1]
    assert find_locale_encodings(text.replace(")", ', encoding="utf-8")')) == []


def find_locale_encodings(text: str) -> list[int]:
    """The lines of calls that leave the encoding of a text to Python."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if _is_of_locale(call)]


def _is_of_locale(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if is_method else getattr(call.func, "id", "")
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    if "encoding" in given:
        return False
    if name == "open":
        mode = "".join(map(ast.unparse, call.args[0 if is_method else 1 :][:1]))
        return ("'" in mode and "b" not in mode) or not (is_method or mode)
    return given.get("text") == "True" or (is_method and name in ("read_text", "write_text"))


CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "time"}


def test_no_test_asserts_that_something_takes_few_seconds(files: list[Path]) -> None:
    """Who promises speed measures it in `bench`; a machine may be as slow as it likes."""
    tests = [path for path in files if path.suffix == ".py" and "tests" in path.parts]
    assert len(tests) > 100
    bounds = {path.name: find_bounds_of_time(path.read_text(encoding="utf-8")) for path in tests}
    assert {name: lines for name, lines in bounds.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "assert time.monotonic() - began < 2",
        "took = round(time.perf_counter() - began, 1); assert 1 < took < 2",
    ],
)
def test_a_bound_of_time_is_found(text: str) -> None:
    assert find_bounds_of_time(text) == [1]
    assert find_bounds_of_time(text.replace("- began", "")) == []  # as a loop with an end has it


def find_bounds_of_time(text: str) -> list[int]:
    """The lines of assertions that compare a difference of a clock's readings."""
    nodes = list(ast.walk(ast.parse(text)))
    taken = [node for node in nodes if isinstance(node, ast.Assign) and _is_duration(node.value)]
    names = {target.id for node in taken for target in node.targets if hasattr(target, "id")}

    def is_bound(test: ast.Compare) -> bool:
        is_ordered = any(isinstance(order, ast.Lt | ast.LtE) for order in test.ops)
        used = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        return is_ordered and (_is_duration(test) or not names.isdisjoint(used))

    asserted = [node for node in nodes if isinstance(node, ast.Assert)]
    return [n.lineno for n in asserted if isinstance(n.test, ast.Compare) and is_bound(n.test)]


def _is_duration(value: ast.AST) -> bool:
    differences = [n for n in ast.walk(value) if isinstance(getattr(n, "op", None), ast.Sub)]
    return any(
        isinstance(node, ast.Attribute) and node.attr in CLOCKS
        for difference in differences
        for node in ast.walk(difference)
    )
