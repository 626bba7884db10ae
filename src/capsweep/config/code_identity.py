"""Which code makes a cell's numbers: a hash of the modules that decide them.

Recorded beside a result, never part of the signature: code that changes without changing numbers
must not orphan results. Comments, docstrings and layout do not count; neither does a module that
the cell does not reach, so a new routing variant leaves the cells of the others alone.
The files count as they were when this process began. Later edits do not change what is imported
already; `check_imported` finds modules that were edited before they were imported.
What was read out of a file is kept in the user's cache under the file's hash, since parsing all
files takes a second of every process.
"""

import ast
import hashlib
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from capsweep.config import package_files, validation
from capsweep.config.cell import with_current_targets
from capsweep.errors import CodeChangedError
from capsweep.storage import disk_cache
from capsweep.storage.files import hash_bytes

# A cell runs through what these import; its network, routing, loss and reader are named by its
# `_target_`s, and what is chosen by other keys is in `_chosen`.
ROOTS = ("capsweep.training.fit", "capsweep.training.ddp")
NUMERICS = ("capsweep.data.", "capsweep.shards.", "capsweep.model.", "capsweep.training.")
# They start a training, measure it, store it or report it, and decide none of its numbers.
APART = frozenset(
    f"capsweep.training.{name}"
    for name in (
        *("calibrate", "provenance"),
        *("run", "run_hooks", "size", "worst_examples"),
    )
)
CHOSEN = frozenset({"capsweep.data.image_batches"})
# It imports capsules of every kind, also those that the network does not have.
LOOKS = "capsweep.training.first_activations"
CACHE_KIND = "code"


class Source(NamedTuple):
    """A module's file, and what it held when this process began."""

    path: Path
    content: bytes


class Parsed(NamedTuple):
    """What a module's file says: a hash of its code, and all that it imports."""

    code: str
    imported: list[str]


@cache
def _parse_modules() -> Mapping[str, Parsed]:
    """What every module says; by the hash of its bytes it is kept in the user's cache."""
    key = f"{platform.python_version()} {package_files.PACKAGE}"
    known: dict[str, Any] = disk_cache.load(CACHE_KIND, key) or {}
    hashes = {name: hash_bytes(source.content) for name, source in _read_modules().items()}
    current: dict[str, Any] = {
        h: known.get(h) or _parse_file(_read_modules()[name].content) for name, h in hashes.items()
    }
    if current.keys() - known.keys():
        disk_cache.save(CACHE_KIND, key, current)
    return {name: Parsed(*current[h]) for name, h in hashes.items()}


def _parse_file(content: bytes) -> tuple[str, list[str]]:
    tree = _without_docstrings(ast.parse(content))
    # Unparsed, since the dump of a tree differs between versions of Python.
    return hash_bytes(ast.unparse(tree).encode()), sorted(set(_list_imported_names(tree)))


def numerics(config: Mapping[str, Any]) -> str:
    """12 hexadecimal digits: the code that decides the numbers of a canonical configuration."""
    current = with_current_targets(config)
    named = [_find_module(str(target)) for _, target in validation.find_targets(current)]
    found = [*ROOTS, *_list_chosen_modules(config), *(name for name in named if name)]
    return _hash_of(_find_closure(frozenset(found)))


def _list_chosen_modules(config: Mapping[str, Any]) -> Iterator[str]:
    """The modules that a configuration reaches without naming them by a `_target_`."""
    yield "capsweep.model.convolution"  # of every network, by `training.build`
    if "batches" not in config["dataset"]:
        yield "capsweep.data.image_batches"


_unchanged: set[str] = set()  # modules whose file was unchanged after their import


def check_imported() -> None:
    """Raise CodeChangedError where a file changed after this process began, so that the imported
    module may differ from the one that `numerics` hashes. A module that was found unchanged
    after its import is not looked at again.
    """
    for name, (path, content) in _read_modules().items():
        is_counted = name.startswith(NUMERICS) and name not in APART | _unchanged
        if not is_counted or name not in sys.modules:
            continue
        if not path.exists() or path.read_bytes() != content:
            raise CodeChangedError(
                f"{path} has changed while this command runs, and it is unknown which code made "
                "the numbers; start the command again"
            )
        _unchanged.add(name)


def check_same(config: Mapping[str, Any], code: str) -> None:
    """Raise CodeChangedError where this process has other code for a cell than its driver."""
    if numerics(config) != code:
        raise CodeChangedError(
            f"the code in {package_files.PACKAGE} has changed since the command was started, which "
            "would mix cells of two codes; start the command again"
        )


@cache
def package() -> str:
    """12 hexadecimal digits: all of capsweep's code."""
    return _hash_of(frozenset(_read_modules()))


@cache
def _read_modules() -> Mapping[str, Source]:
    """Every module of the package, by its dotted name."""
    found: dict[str, Source] = {}
    for path in sorted(package_files.PACKAGE.rglob("*.py")):
        parts = ("capsweep", *path.relative_to(package_files.PACKAGE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = Source(path, path.read_bytes())
    return found


def _find_module(dotted: str) -> str | None:
    """The module in which something named by its dotted path stands; None outside capsweep."""
    while dotted and dotted not in _read_modules():
        dotted = dotted.rpartition(".")[0]
    return dotted or None


@cache
def _find_closure(modules: frozenset[str]) -> frozenset[str]:
    reached: set[str] = set()
    waiting = set(modules)
    while waiting:
        module = waiting.pop()
        reached.add(module)
        found = () if module == LOOKS else _list_imports(module)
        waiting |= {name for name in found if name.startswith(NUMERICS)} - reached - APART - CHOSEN
    return frozenset(reached)


@cache
def _list_imports(module: str) -> frozenset[str]:
    names = map(_find_module, _parse_modules()[module].imported)
    return frozenset(name for name in names if name)


def _list_imported_names(tree: ast.Module) -> Iterator[str]:
    for node in _walk_runtime_code(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _walk_runtime_code(node: ast.AST) -> Iterator[ast.AST]:
    """What is below `node`, without what a type checker alone reads."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for below in ast.iter_child_nodes(node):
        yield from _walk_runtime_code(below)


@cache
def _hash_of(modules: frozenset[str]) -> str:
    texts = [f"{module} {_parse_modules()[module].code}\n" for module in sorted(modules)]
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:12]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        text = first.value if isinstance(first, ast.Expr) else None
        if body and isinstance(text, ast.Constant) and isinstance(text.value, str):
            body[0] = ast.Pass()
    return tree


_read_modules()  # now, before what it speaks of is imported
