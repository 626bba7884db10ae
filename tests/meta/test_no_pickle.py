"""Nothing that is read from a disk or from others is unpickled: no way to do so is in the code."""

import ast
import re
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
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads"),
    *("joblib.load", "torch.jit.load", "torch.package.PackageImporter", "yaml.unsafe_load"),
    *("yaml.full_load", "marshal.loads", "shelve.open", "eval", "exec"),
}
# Those of our own are SafeLoaders.
LOADERS = {"yaml.CSafeLoader", "yaml.SafeLoader", "_StrictLoader", "bounded_yaml.PlainLoader"}


def is_true(value: ast.expr | None, expected: bool = True) -> bool:
    """Whether the value of an argument is written out as expected."""
    return isinstance(value, ast.Constant) and value.value is expected


def find_faults(path: Path) -> Iterator[str]:
    """Calls of a file that could run what they read."""
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call):
            continue
        name, given = ast.unparse(call.func), {word.arg: word.value for word in call.keywords}
        where = f"line {call.lineno}: {name}"
        if name in NEVER:
            yield where
        if name in SAFE and not is_true(given.get(SAFE[name][0]), SAFE[name][1]):
            yield f"{where} without {SAFE[name]}"
        has_loader = len(call.args) + len(given) > 1
        if name == "yaml.load" or (name == "bounded_yaml.load" and has_loader):
            (loader,) = map(ast.unparse, (*call.args[1:], *given.values()))
            # bounded_yaml hands on the loader that its callers name, who are looked at as well.
            if loader not in LOADERS | ({"loader"} if path.name == "bounded_yaml.py" else set()):
                yield f"{where} with {loader}"
        is_resumed = re.match(r"trainer.*\.(fit|test)$", name) and "ckpt_path" in given
        if is_resumed and not is_true(given.get("weights_only")):
            yield f"{where} of a checkpoint without weights_only=True"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.name)
def test_nothing_that_is_read_is_unpickled(path: Path) -> None:
    assert list(find_faults(path)) == []


def test_what_unpickles_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "np.load(f)\ntorch.load(f, weights_only=False)\npickle.loads(b)\nyaml.load(f, X)\n"
    )
    assert len(list(find_faults(path))) == 4
