"""Which code makes a cell's numbers: a hash of the modules that decide them.

Recorded beside a result, never part of the signature: code that changes without changing numbers
must not orphan results. Comments, docstrings and layout do not count; neither does a module that
the cell does not reach, so a new routing variant leaves the cells of the others alone.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from capsweep.config import roots, rules

# What every cell runs through; its network, routing, loss and reader are named by its `_target_`s,
# and what `training.build` and `training.run` choose by other keys is in `_chosen`.
ROOTS = ("capsweep.training.assemble", "capsweep.training.module")
NUMERICS = (
    "capsweep.data.",
    "capsweep.model.",
    "capsweep.training.across",
    "capsweep.training.assemble",
    "capsweep.training.compiled",
    "capsweep.training.fused",
    "capsweep.training.metrics",
    "capsweep.training.module",
    "capsweep.training.objective",
    "capsweep.training.schedule",
    "capsweep.training.stop",
)


def numerics(config: Mapping[str, Any]) -> str:
    """12 hexadecimal digits: the code that decides the numbers of a canonical configuration."""
    named = [_home(str(target)) for _, target in rules.targets(config)]
    found = [*ROOTS, *_chosen(config), *(name for name in named if name)]
    return _hash_of(_closure(frozenset(found)))


def _chosen(config: Mapping[str, Any]) -> Iterator[str]:
    """The modules that a configuration reaches without naming them by a `_target_`."""
    yield "capsweep.model.convolution"  # of every network, by `training.build`
    if "batches" not in config["dataset"]:
        yield "capsweep.data.shifted"
    if config["stop_accuracy"] is not None:
        yield "capsweep.training.stop"
    if config["optim"]["decayed"] != "all":
        yield "capsweep.training.decay"


@cache
def package() -> str:
    """12 hexadecimal digits: all of capsweep's code."""
    return _hash_of(frozenset(_modules()))


@cache
def _modules() -> Mapping[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in sorted(roots.PACKAGE.rglob("*.py")):
        parts = ("capsweep", *path.relative_to(roots.PACKAGE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def _home(dotted: str) -> str | None:
    """The module in which something named by its dotted path stands; None outside capsweep."""
    while dotted and dotted not in _modules():
        dotted = dotted.rpartition(".")[0]
    return dotted or None


@cache
def _closure(modules: frozenset[str]) -> frozenset[str]:
    reached: set[str] = set()
    waiting = set(modules)
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting |= {name for name in _imports(module) if name.startswith(NUMERICS)} - reached
    return frozenset(reached)


@cache
def _imports(module: str) -> frozenset[str]:
    return frozenset(name for name in map(_home, _imported(module)) if name)


def _imported(module: str) -> Iterator[str]:
    for node in _running(_tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """What is below `node`, without what a type checker alone reads."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for below in ast.iter_child_nodes(node):
        yield from _running(below)


@cache
def _hash_of(modules: frozenset[str]) -> str:
    digest = hashlib.sha256()
    for module in sorted(modules):
        # Unparsed, since the dump of a tree differs between versions of Python.
        digest.update(f"{module}\n{ast.unparse(_tree(module))}\n".encode())
    return digest.hexdigest()[:12]


def _tree(module: str) -> ast.Module:
    tree = ast.parse(_modules()[module].read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[0] = ast.Pass()
    return tree


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
