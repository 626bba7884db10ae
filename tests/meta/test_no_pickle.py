"""Nothing that is read from a disk or from others is unpickled: no way to do so is in the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

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


def find_faults(path: Path) -> Iterator[str]:
    """Calls of a file that could run what they read."""
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call):
            name, text = ast.unparse(call.func), ast.unparse(call)
            told = SAFE.get(name.replace("numpy.", "np."), ("",))
            if name in NEVER or not any(word in text for word in told):
                yield f"line {call.lineno}: {text}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.name)
def test_nothing_that_is_read_is_unpickled(path: Path) -> None:
    assert list(find_faults(path)) == []


def test_what_unpickles_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "np.load(f)\ntorch.load(f, weights_only=False)\npickle.loads(b)\nyaml.load(f, X)\n"
    )
    assert len(list(find_faults(path))) == 4
