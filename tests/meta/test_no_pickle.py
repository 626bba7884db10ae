"""Nothing that is read from a disk or from others is unpickled: no way to do so is in the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# What unpickles unless it is told not to, and how it is told.
SAFE = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}
NEVER = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cloudpickle.load",
    "cloudpickle.loads",
    "joblib.load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "yaml.unsafe_load",
    "yaml.full_load",
    "marshal.loads",
    "shelve.open",
    "eval",
    "exec",
}
LOADERS = {"yaml.CSafeLoader", "yaml.SafeLoader", "_StrictLoader"}  # the last is a SafeLoader


def calls(path: Path) -> Iterator[ast.Call]:
    """Every call of a file."""
    tree = ast.parse(path.read_text())
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def faults(path: Path) -> Iterator[str]:
    """Calls that could run what they read."""
    for call in calls(path):
        name = ast.unparse(call.func)
        given = {word.arg: word.value for word in call.keywords}
        if name in NEVER:
            yield f"line {call.lineno}: {name}"
        if name in SAFE:
            word, value = SAFE[name]
            told = given.get(word)
            if not (isinstance(told, ast.Constant) and told.value is value):
                yield f"line {call.lineno}: {name} without {word}={value}"
        if name == "bounded_yaml.load" and len(call.args) + len(given) > 1:
            (loader,) = map(ast.unparse, (*call.args[1:], *given.values()))
            if loader not in LOADERS:
                yield f"line {call.lineno}: bounded_yaml.load with {loader}"
        if name == "yaml.load":
            loader = ast.unparse(given["Loader"] if "Loader" in given else call.args[1])
            # bounded_yaml hands on the loader that its callers name, who are looked at as well.
            if loader not in LOADERS | ({"loader"} if path.name == "bounded_yaml.py" else set()):
                yield f"line {call.lineno}: yaml.load with {loader}"
        if name.endswith((".fit", ".test")) and name.startswith("trainer") and "ckpt_path" in given:
            told = given.get("weights_only")
            if not (isinstance(told, ast.Constant) and told.value is True):
                yield f"line {call.lineno}: {name} of a checkpoint without weights_only=True"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.name)
def test_nothing_that_is_read_is_unpickled(path: Path) -> None:
    assert list(faults(path)) == []


def test_what_unpickles_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("np.load(f)\ntorch.load(f, weights_only=False)\npickle.loads(b)\n")
    assert len(list(faults(path))) == 3
