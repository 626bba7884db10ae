"""Which code a configuration calls: what it may name, and a hash of the modules that make the
numbers of a cell.

The hash is recorded beside a result, never part of the signature: code that changes without
changing numbers must not orphan results. Comments, docstrings and layout do not count; neither does
a module that the cell does not reach, so a new routing variant leaves the cells of the others
alone.
The files count as they were when this process began; a worker that begins later must have the same.
What was read out of them is kept in the user's cache, since parsing all files takes a second.
"""

import ast
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from capsweep.config import package_files
from capsweep.config.cell import CURRENT_TARGETS
from capsweep.errors import CodeChangedError, ConfigError
from capsweep.storage.checked import compute_once
from capsweep.storage.files import hash_bytes

# A configuration file names code to call, so it may name only these: what makes networks, losses,
# optimisers and data, and nothing that writes files or opens connections.
SHARDS = ("capsweep.shards.batches.", "capsweep.shards.reader.")
TARGETS = ("capsweep.data.", *SHARDS, "capsweep.model.", "torch.nn.", "torch.optim.")

# A cell trains through what these import; its network, routing, loss and reader are named by its
# `_target_`s, and `hash_numerics` adds what other keys choose. What starts a training, measures it,
# stores it or reports it is beside these, and decides none of its numbers.
ROOTS = ("capsweep.training.build", "capsweep.training.callbacks")
NUMERICS = ("capsweep.data.", "capsweep.shards.", "capsweep.model.", "capsweep.training.")
CHOSEN = frozenset({"capsweep.data.image_batches"})


def check_targets(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key, where a `_target_` begins in no allowed way; imports
    nothing.
    """
    for key, target in find_targets(config):
        if not (isinstance(target, str) and target.startswith(TARGETS)):
            allowed = ", ".join(TARGETS)
            raise ConfigError(f"{key}: {target!r} may not be called; have {allowed}")


def find_targets(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every `_target_` below `value`, with its key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            if key == "_target_":
                yield path, item
            yield from find_targets(item, path)
    elif isinstance(value, list):  # Hydra looks into lists too
        for place, item in enumerate(value):
            yield from find_targets(item, f"{prefix}[{place}]")


@cache
def _parse_modules() -> Mapping[str, tuple[str, list[str]]]:
    """Of every module a hash of its code, and all that it imports."""
    return compute_once(
        "code",
        f"{platform.python_version()} {hash_package()}",
        lambda: {name: _parse_file(content) for name, content in _read_modules().items()},
    )


def _parse_file(content: bytes) -> tuple[str, list[str]]:
    tree = _without_docstrings(ast.parse(content))
    # Unparsed, since the dump of a tree differs between versions of Python.
    return hash_bytes(ast.unparse(tree).encode()), sorted(set(_list_imported_names(tree)))


def hash_numerics(config: Mapping[str, Any]) -> str:
    """12 hexadecimal digits: the code that decides the numbers of a canonical configuration."""
    targets = (str(target) for _, target in find_targets(config))
    modules = {_find_module(CURRENT_TARGETS.get(target, target)) for target in targets}
    modules |= {*ROOTS, "capsweep.model.convolution"}  # of every network, by `training.build`
    if "batches" not in config["dataset"]:
        modules.add("capsweep.data.image_batches")
    return _hash_of(_find_closure(frozenset(name for name in modules if name)))


def check_same(config: Mapping[str, Any], code: str) -> None:
    """Raise CodeChangedError where this process has other code for a cell than its driver."""
    if hash_numerics(config) != code:
        raise CodeChangedError(
            f"the code in {package_files.PACKAGE} has changed since the command was started, which "
            "would mix cells of two codes; start the command again"
        )


@cache
def hash_package() -> str:
    """12 hexadecimal digits: all of capsweep's code, comments included."""
    hashes = sorted((name, hash_bytes(content)) for name, content in _read_modules().items())
    return hash_bytes(repr(hashes).encode())[:12]


@cache
def _read_modules() -> Mapping[str, bytes]:
    """Every module of the package, by its dotted name, as it was when this process began."""
    contents: dict[str, bytes] = {}
    for path in sorted(package_files.PACKAGE.rglob("*.py")):
        parts = ("capsweep", *path.relative_to(package_files.PACKAGE).with_suffix("").parts)
        contents[".".join(parts).removesuffix(".__init__")] = path.read_bytes()
    return contents


def _find_module(dotted: str) -> str | None:
    """The module in which something named by its dotted path stands; None outside capsweep."""
    while dotted and dotted not in _read_modules():
        dotted = dotted.rpartition(".")[0]
    return dotted or None


@cache
def _find_closure(modules: frozenset[str]) -> frozenset[str]:
    """The modules, and those that decide numbers of all that they import."""
    closure: set[str] = set()
    waiting = set(modules)
    while waiting:
        module = waiting.pop()
        closure.add(module)
        imports = map(_find_module, _parse_modules()[module][1])
        counted = {name for name in imports if name and name.startswith(NUMERICS)}
        waiting |= counted - closure - CHOSEN
    return frozenset(closure)


def _list_imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _hash_of(modules: frozenset[str]) -> str:
    texts = [f"{module} {_parse_modules()[module][0]}\n" for module in sorted(modules)]
    return hash_bytes("".join(texts).encode())[:12]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        text = first.value if isinstance(first, ast.Expr) else None
        if body and isinstance(text, ast.Constant) and isinstance(text.value, str):
            body[0] = ast.Pass()
    return tree


_read_modules()  # now, before what it speaks of is imported
