"""Rules that no tool holds: of files, and of questions and answers."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from capsweep.report import publish
from capsweep.sweep import choices

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


def test_the_version_to_cite_is_the_version_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    for key in ("version", "license"):
        assert cited[key] == project[key]


def test_source_files_can_be_read_in_one_sitting() -> None:
    sources = sorted((REPOSITORY / "src").rglob("*.py"))
    lengths = {path.name: len(path.read_text().splitlines()) for path in sources}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


@pytest.fixture
def answers() -> dict[str, str]:
    """`sweeps/NAME.md` by name."""
    texts = {path.stem: path.read_text() for path in REPOSITORY.glob("sweeps/*.md")}
    return {name: text for name, text in texts.items() if name != "README"}


def test_every_question_is_listed() -> None:
    listed = (REPOSITORY / "sweeps" / "README.md").read_text()
    questions = {path.name for path in REPOSITORY.glob("sweeps/*.yaml")}
    assert questions == set(re.findall(r"`(\w+\.yaml)` \|", listed))
    answers = {path.name for path in REPOSITORY.glob("sweeps/*.md")} - {"README.md"}
    assert answers == set(re.findall(r"\((\w+\.md)\) \|", listed))


def test_examples_of_a_sweep_file_are_sweeps(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/how-to/write-a-sweep.md").read_text()
    examples = re.findall(r"```yaml\n((?:question|kind):.*?)```", page, re.DOTALL)
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.yaml"
        path.write_text(example)
        assert choices.load_sweep(str(path)).arms
    assert len(examples) == 2


def test_every_answer_has_a_verdict_by_hand(answers: dict[str, str]) -> None:
    assert answers
    for name, text in answers.items():
        _, _, verdict = text.partition("## Verdict\n")
        assert verdict.strip(), name
        assert publish.VERDICT not in verdict, name


# What may unpickle, and how it is told not to; those of YAML that are our own are SafeLoaders.
SAFE = {
    "torch.load": ("weights_only=True",),
    "np.load": ("allow_pickle=False",),
    "trainer.fit": ("weights_only=True",),
    "yaml.load": ("CSafeLoader", "SafeLoader", "_StrictLoader", "PlainLoader", ", loader"),
}
NEVER = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads"),
    *("joblib.load", "torch.jit.load", "torch.package.PackageImporter", "yaml.unsafe_load"),
    *("yaml.full_load", "marshal.loads", "shelve.open", "eval", "exec"),
}
DURATION = re.compile(
    r"(monotonic|perf_counter|process_time|time)(_ns)?\(\) - |- \w+\.(monotonic|perf_counter|time)"
)


def list_calls(text: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


def find_unpickling(text: str) -> list[int]:
    """The lines of calls that could run what they read."""
    return [call.lineno for call in list_calls(text) if _unpickles(call)]


def _unpickles(call: ast.Call) -> bool:
    name, text = ast.unparse(call.func), ast.unparse(call)
    told = SAFE.get(name.replace("numpy.", "np."), ("",))
    return name in NEVER or not any(word in text for word in told)


def find_locale_encodings(text: str) -> list[int]:
    """The lines of calls that leave the encoding of a text to Python."""
    return [call.lineno for call in list_calls(text) if _is_of_locale(call)]


def _is_of_locale(call: ast.Call) -> bool:
    *owner, name = ast.unparse(call.func).split(".")
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    mode = "".join(map(ast.unparse, call.args[0 if owner else 1 :][:1]))
    if "encoding" in given:
        return False
    if name == "open":
        return ("'" in mode and "b" not in mode) or not (owner or mode)
    return given.get("text") == "True" or (bool(owner) and name in ("read_text", "write_text"))


def find_bounds_of_time(text: str) -> list[int]:
    """The lines of assertions that compare a difference of a clock's readings."""
    nodes = list(ast.walk(ast.parse(text)))
    set_here = [(ast.unparse(n.targets[0]), n.value) for n in nodes if isinstance(n, ast.Assign)]
    taken = {name for name, value in set_here if DURATION.search(ast.unparse(value))}
    found = []
    for node in nodes:
        asserted = ast.unparse(node.test) if isinstance(node, ast.Assert) else ""
        is_duration = DURATION.search(asserted) or taken & set(re.findall(r"\w+", asserted))
        if " <" in asserted and is_duration:
            found.append(node.lineno)
    return found


# Where a rule holds, and what it does not let through. Who promises speed measures it in `bench`: a
# machine may be as slow as it likes.
RULES = [
    (
        find_unpickling,
        ("src",),
        ["np.load(f)", "torch.load(f, weights_only=False)", "pickle.loads(b)", "yaml.load(f, X)"],
    ),
    (
        find_locale_encodings,
        ("src", "data_prep"),
        ["path.read_text(errors=None)", "open(path)", 'path.open("a")', "run(words, text=True)"],
    ),
    (
        find_bounds_of_time,
        ("tests",),
        [
            "assert time.monotonic() - began < 2",
            "took = round(time.perf_counter() - began, 1); assert 1 < took < 2",
        ],
    ),
]


@pytest.mark.parametrize(("rule", "folders", "forbidden"), RULES)
def test_no_call_breaks_a_rule(
    rule: Callable[[str], list[int]],
    folders: tuple[str, ...],
    forbidden: list[str],
    files: list[Path],
) -> None:
    places = [path.relative_to(REPOSITORY) for path in files if path.suffix == ".py"]
    texts = {path: (REPOSITORY / path).read_text() for path in places if path.parts[0] in folders}
    assert len(texts) > 100
    assert {path: lines for path, text in texts.items() if (lines := rule(text))} == {}
    assert [rule(text) for text in forbidden] == [[1]] * len(forbidden)
    assert find_locale_encodings('open(path, encoding="utf-8")') == []
    assert find_bounds_of_time("assert time.monotonic() < end") == []  # as a loop with an end has
