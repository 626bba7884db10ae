"""The code that a configuration calls: a check that it may be called, and a hash of it.

The hash is recorded beside a result. The hash is not part of the signature, because results must
stay valid if the code changes and the numbers do not. Comments, docstrings and layout do not change
the hash. Modules that the cell does not import do not change the hash either, so a new routing
variant does not affect the cells of other variants.

Files are read when this process starts; a worker that starts later must find the same code.
Parsing all files takes a second, so the result is kept in the user's cache.
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

# A configuration names code to call. Only the code of these modules is allowed: it makes networks,
# losses, optimisers and data. It neither writes files nor opens connections.
SHARDS = ("capsweep.shards.batches.", "capsweep.shards.reader.")
TARGETS = ("capsweep.data.", *SHARDS, "capsweep.model.", "torch.nn.", "torch.optim.")

# The hash of a cell covers ROOTS, the modules of the cell's `_target_`s (network, routing, loss,
# reader), and the modules that `hash_numerics` adds. It also covers the modules of NUMERICS that
# any of these modules import, directly or indirectly. Code that starts, measures, stores or reports
# a run is not covered, because it does not change the numbers.
ROOTS = ("capsweep.training.build", "capsweep.training.callbacks")
NUMERICS = ("capsweep.data.", "capsweep.shards.", "capsweep.model.", "capsweep.training.")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CHOSEN = frozenset({"capsweep.data.image_batches"})  # hashed only for cells that use it


def check_targets(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if a `_target_` is outside the allowed modules; the message names the key.

    The check imports no code.
    """
    for key, target in find_targets(config):
        if not (isinstance(target, str) and target.startswith(TARGETS)):
            allowed = ", ".join(TARGETS)
            raise ConfigError(f"{key}: {target!r} may not be called; use a name below {allowed}")


def find_targets(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each `_target_` below `value`."""
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
    """Return, by name of the module, a hash of its code and the names that the code imports."""
    return compute_once(
        "code",
        f"{platform.python_version()} {hash_package()}",
        lambda: {name: _parse_file(content) for name, content in _read_modules().items()},
    )


def _parse_file(content: bytes) -> tuple[str, list[str]]:
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    # The tree is written as source, because its dump differs between versions of Python.
    return hash_bytes(ast.unparse(tree).encode()), sorted(set(_list_imported_names(tree)))


def hash_numerics(config: Mapping[str, Any]) -> str:
    """Compute a hash, 12 hexadecimal digits, of the code that decides the numbers of a cell.

    Args:
        config: The canonical configuration of the cell.
    """
    targets = (str(target) for _, target in find_targets(config))
    modules = {_find_module(CURRENT_TARGETS.get(target, target)) for target in targets}
    modules |= {*ROOTS, "capsweep.model.convolution"}  # `training.build` uses it for each network
    if "batches" not in config["dataset"]:
        modules.add("capsweep.data.image_batches")
    return _hash_modules(frozenset(name for name in modules if name))


def check_same_code(config: Mapping[str, Any], code: str) -> None:
    """Raise CodeChangedError if the code for a cell differs between this process and the driver.

    Args:
        config: The canonical configuration of the cell.
        code: The hash that `hash_numerics` returned in the driver, the process of the command.
    """
    if hash_numerics(config) != code:
        raise CodeChangedError(
            f"the code in {package_files.PACKAGE} changed after the command was started, so its "
            "cells would be made by different code; start the command again"
        )


@cache
def hash_package() -> str:
    """Compute a hash, 12 hexadecimal digits, of all of capsweep's code, comments included."""
    hashes = sorted((name, hash_bytes(content)) for name, content in _read_modules().items())
    return hash_bytes(repr(hashes).encode())[:12]


@cache
def _read_modules() -> Mapping[str, bytes]:
    """Return the source of each module by dotted name; files are read once in a process."""
    contents: dict[str, bytes] = {}
    for path in sorted(package_files.PACKAGE.rglob("*.py")):
        parts = ("capsweep", *path.relative_to(package_files.PACKAGE).with_suffix("").parts)
        contents[".".join(parts).removesuffix(".__init__")] = path.read_bytes()
    return contents


def _find_module(dotted: str) -> str | None:
    """Find the module of capsweep that contains a dotted name; None if the name is elsewhere."""
    while dotted and dotted not in _read_modules():
        dotted = dotted.rpartition(".")[0]
    return dotted or None


@cache
def _hash_modules(modules: frozenset[str]) -> str:
    """Hash `modules`, and the modules of NUMERICS that `modules` import, directly or indirectly.

    A module of CHOSEN is hashed only if it is one of `modules`.
    """
    closure: set[str] = set()
    waiting = set(modules)
    while waiting:
        module = waiting.pop()
        closure.add(module)
        imports = map(_find_module, _parse_modules()[module][1])
        counted = {name for name in imports if name and name.startswith(NUMERICS)}
        waiting |= counted - closure - CHOSEN
    texts = [f"{module} {_parse_modules()[module][0]}\n" for module in sorted(closure)]
    return hash_bytes("".join(texts).encode())[:12]


def _list_imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


_read_modules()  # read the sources now, before the modules are imported
