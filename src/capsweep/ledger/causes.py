"""Describe and classify the causes of failures, and compare two configurations.

The cause of a failure is one line of text. The line begins with the name of an exception type, and
this type decides the kind of the failure. It is the type of the raised exception, or of an earlier
exception that led to the raised exception. If this type has no known kind, the line begins with its
nearest base class that has a known kind. A failed cell is not run again if the same code would
certainly fail again. All other failed cells are run again.
"""

import builtins
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal

from capsweep.config.cell import NEUTRAL, flatten
from capsweep.errors import SHORT_OF_MEMORY

# done: finished. stale: finished by other code. failed: ended by an error, or a file is damaged.
# stopped: ended early by a search, without a result. running: a process runs the cell.
# missing: the ledger has nothing about the cell.
Status = Literal["done", "stale", "failed", "stopped", "running", "missing"]


class CauseKind(StrEnum):
    """The kind of a failure. Reports group failures by kind."""

    OUT_OF_MEMORY = "out of memory"  # a GPU, a process or a node had too little memory
    NOT_FINITE = "NaN"  # a loss or metric was not finite
    DATA = "data"  # a data file is absent, damaged or wrong
    LOST = "lost worker"  # the process of the cell ended
    STORAGE = "storage"  # a disk or an object store failed
    NODE = "node"  # the node cannot run cells
    CODE = "code"  # an error of the code or of the configuration
    UNKNOWN = "unknown"  # any other type of exception


LOST_WORKER = "WorkerLost: "  # begins the cause if the cell's process ended; the reason follows
NODE_MEMORY = "OutOfMemory: Ray ended the worker because its node ran out of memory"

# After a failure of these kinds, the same code fails again with the same configuration.
DETERMINISTIC = frozenset({CauseKind.NOT_FINITE, CauseKind.CODE})

# Names of exception types by kind. Any other type has the kind of its nearest base class here.
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

    One exception decides the cause. The raised exception is examined first, then the exception that
    led to the raised exception, and so on. The first exception with a kind other than CODE and
    UNKNOWN decides. If there is none, the raised exception decides.

    Args:
        error: The raised exception.

    Returns:
        The type and the message of the deciding exception. If an earlier exception decides, the
        type and the message of the raised exception follow in brackets.
    """
    lines = [_describe_error(link) for link in _walk_chain(error)]
    internal = (CauseKind.CODE, CauseKind.UNKNOWN)
    external = (line for line in lines if classify_cause(line) not in internal)
    deciding = next(external, lines[0])
    return deciding if deciding == lines[0] else f"{deciding} ({lines[0]})"


def _walk_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then the exception that led to it, and so on back to the first exception.

    The next exception is the `__cause__` of the exception before. If there is no `__cause__`, and
    if the context is not suppressed, the next exception is the `__context__`.
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


def is_lost_worker(cause: str) -> bool:
    """Return whether a cell failed because its worker process ended.

    The failed cell itself may be without fault. For example, if a node has no memory left, Ray ends
    the newest worker of the node, even if another worker took the memory.
    """
    return classify_cause(cause) == CauseKind.LOST or cause == NODE_MEMORY


def classify_cause(cause: str) -> CauseKind:
    """Return the kind of a failure.

    The exception type decides. But if its kind is UNKNOWN or STORAGE, and if the text of the cause
    says that memory ran out, the result is OUT_OF_MEMORY.

    Args:
        cause: The cause of the failure, which begins with the name of an exception type.
    """
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
    """Find the leaf keys that have different values in two science configurations.

    If a configuration is older than an option, the option counts as set to its neutral value. The
    signature of the configuration uses the same rule.

    Returns:
        The sorted keys that differ, each with two values: the value in `here` and the value in
        `there`. If a configuration lacks the key, `value_of` decides the value.
    """
    ours, theirs = flatten(here), flatten(there)
    keys = sorted(ours.keys() | theirs.keys())
    pairs = {key: (value_of(ours, key), value_of(theirs, key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def value_of(leaves: Mapping[str, Any], key: str) -> Any:
    """Return the value of a leaf key; if the configuration lacks the key, return its neutral value.

    Args:
        leaves: The leaves of a configuration, by dotted key.
        key: A dotted key.

    Returns:
        The first that applies:

        - The value of the key, if the configuration has the key.
        - None, if the key has no neutral value.
        - None, if the configuration has no key of the group, such as `dataset`.
        - The neutral value, which means the same as an absent key.
    """
    if key in leaves or key not in NEUTRAL:
        return leaves.get(key)
    group, _, inside = key.partition(".")
    has_group = not inside or any(leaf.startswith(f"{group}.") for leaf in leaves)
    return NEUTRAL[key] if has_group else None
