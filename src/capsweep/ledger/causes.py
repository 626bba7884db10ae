"""The causes of failures and their kinds, and the differences between two configurations.

A cause is one line. It begins with the name of an exception type, and the type decides the kind of
the failure. The exception is the raised exception or an earlier exception that led to it. A failed
cell is retried unless the same code would certainly fail again.
"""

import builtins
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal

from capsweep.config.cell import NEUTRAL, flatten
from capsweep.errors import SHORT_OF_MEMORY

# done: finished. stale: finished by other code. stopped: ended early by a search, without a result.
# running: a living process runs the cell. missing: the ledger has nothing about the cell.
Status = Literal["done", "stale", "failed", "stopped", "running", "missing"]


class CauseKind(StrEnum):
    """The kind of a failure. Reports group failures by kind."""

    OUT_OF_MEMORY = "out of memory"  # of a GPU, a process or a node
    NOT_FINITE = "NaN"  # a loss or metric was not finite
    DATA = "data"  # a data file is absent, damaged or wrong
    LOST = "lost worker"  # the process of the cell ended
    STORAGE = "storage"  # a disk or an object store failed
    NODE = "node"  # the node cannot run cells
    CODE = "code"  # an error of the code or of the configuration
    UNKNOWN = "unknown"  # any other type of exception


NODE_MEMORY = "OutOfMemory: Ray ended the worker because its node ran out of memory"

# Kinds with which the same code fails again on the same configuration.
DETERMINISTIC = frozenset({CauseKind.NOT_FINITE, CauseKind.CODE})

# Names of exception types by kind. Any other type has the kind of its nearest base class.
TYPES = {
    CauseKind.LOST: ("WorkerLost",),
    CauseKind.NODE: ("NodeError",),
    CauseKind.OUT_OF_MEMORY: ("OutOfMemory", "OutOfMemoryError", "MemoryError"),
    CauseKind.STORAGE: ("StoreError", "OSError"),
    CauseKind.NOT_FINITE: ("NonFiniteLossError",),
    # JSONDecodeError: the file is incomplete, or another process is writing it now.
    CauseKind.DATA: ("DataError", "JSONDecodeError", "UnicodeError"),
    CauseKind.CODE: (
        *("UserError", "ConfigError", "AccuracyNotReachedError", "ArithmeticError"),
        *("AssertionError", "AttributeError", "ImportError", "LookupError", "NameError"),
        *("NotImplementedError", "RecursionError", "TypeError", "ValueError"),
    ),
}
KINDS = {name: kind for kind, names in TYPES.items() for name in names}


def describe_cause(error: BaseException) -> str:
    """Describe the cause of a failure in one line.

    Returns:
        Type and message of the deciding exception. This is the first exception in the chain whose
        kind is neither CODE nor UNKNOWN. If there is no such exception, the raised exception
        decides. If an earlier exception decides, the raised exception follows in brackets.
    """
    lines = [_describe_error(link) for link in _walk_chain(error)]
    external = (
        line for line in lines if classify_cause(line) not in (CauseKind.CODE, CauseKind.UNKNOWN)
    )
    deciding = next(external, lines[0])
    return deciding if deciding == lines[0] else f"{deciding} ({lines[0]})"


def _walk_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then the exception that led to it, and so on back to the first exception.

    The earlier exception is the `__cause__` or, if this is not suppressed, the `__context__`.
    """
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        yield link
        visited.add(id(link))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _describe_error(error: BaseException) -> str:
    line = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if classify_cause(line) is not CauseKind.UNKNOWN:
        return line
    known = next((base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS), None)
    return line if known is None else f"{known}: {line}"


def describe_lost_worker(why: str) -> str:
    """Return the cause of a cell whose process ended."""
    return f"WorkerLost: {why}"


def is_lost_worker(cause: str) -> bool:
    """Return whether a cell failed because its worker process ended.

    The cell may not be the reason: if a node has no memory left, Ray ends the newest worker of the
    node, even if another worker took the memory.
    """
    return classify_cause(cause) == CauseKind.LOST or cause == NODE_MEMORY


def classify_cause(cause: str) -> CauseKind:
    """Return the kind of a failure, given its cause, which begins with an exception type."""
    name = cause.partition(":")[0]
    # KINDS has our types and torch's types. Python's types are classified by their base classes.
    known = getattr(builtins, name, None)
    names = [base.__name__ for base in known.__mro__] if isinstance(known, type) else [name]
    kind = next((KINDS[base] for base in names if base in KINDS), CauseKind.UNKNOWN)
    may_be_memory = kind in (CauseKind.UNKNOWN, CauseKind.STORAGE)
    if may_be_memory and any(sign in cause.lower() for sign in SHORT_OF_MEMORY):
        return CauseKind.OUT_OF_MEMORY
    return kind


def find_differences(
    here: Mapping[str, Any], there: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Find the leaf keys in which two science configurations differ.

    If a configuration is older than an option, the option counts as set to its neutral value. The
    signature of the configuration uses the same rule.

    Returns:
        The keys that differ, sorted, each with its value in `here` and its value in `there`. A
        value is None if the key does not exist.
    """
    ours, theirs = flatten(here), flatten(there)
    keys = sorted(ours.keys() | theirs.keys())
    pairs = {key: (value_of(ours, key), value_of(theirs, key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def value_of(leaves: Mapping[str, Any], key: str) -> Any:
    """Return the value of a leaf key, or its neutral value if the configuration lacks the key.

    Args:
        leaves: The leaves of a configuration, by dotted key.
        key: A dotted key.

    Returns:
        The value. If the key is absent but other keys of its group exist, the neutral value of the
        key. None: the whole group is absent, or the key has no neutral value.
    """
    if key in leaves or key not in NEUTRAL:
        return leaves.get(key)
    group, _, inside = key.partition(".")
    has_group = not inside or any(leaf.startswith(f"{group}.") for leaf in leaves)
    return NEUTRAL[key] if has_group else None
