"""Why a cell failed, in one line, and of which kind; in what its settings differ from others.

The kind of a failure follows from the type of the exception, or of one that it was raised from; the
line begins with the name of that type. Only what is provably of the code is not tried again.
"""

import builtins
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal

from capsweep.config.cell import NEUTRAL, flatten
from capsweep.errors import SHORT_OF_MEMORY

# done: finished. stale: finished, by other code. stopped: ended early by a search, never a result.
# running: some living process has it.
Status = Literal["done", "stale", "failed", "stopped", "running", "missing"]


class CauseKind(StrEnum):
    """Kinds of failure, as they are grouped for a person."""

    OUT_OF_MEMORY = "out of memory"
    NOT_FINITE = "NaN"
    DATA = "data"
    LOST = "lost worker"
    STORAGE = "storage"
    NODE = "node"
    CODE = "code"
    UNKNOWN = "unknown"


NODE_MEMORY = "OutOfMemory: Ray ended the worker because its node ran out of memory"

# The same code on the same configuration fails in the same way.
DETERMINISTIC = frozenset({CauseKind.NOT_FINITE, CauseKind.CODE})

# Names of types by their kind; a type that is not here is of the kind of its nearest base.
TYPES = {
    CauseKind.LOST: ("WorkerLost",),
    CauseKind.NODE: ("NodeError",),
    CauseKind.OUT_OF_MEMORY: ("OutOfMemory", "OutOfMemoryError", "MemoryError"),
    CauseKind.STORAGE: ("StoreError", "OSError"),
    CauseKind.NOT_FINITE: ("NonFiniteLossError",),
    # JSONDecodeError: a file that is being written, or was cut short.
    CauseKind.DATA: ("DataError", "JSONDecodeError", "UnicodeError"),
    CauseKind.CODE: (
        *("UserError", "ConfigError", "AccuracyNotReachedError", "ArithmeticError"),
        *("AssertionError", "AttributeError", "ImportError", "LookupError", "NameError"),
        *("NotImplementedError", "RecursionError", "TypeError", "ValueError"),
    ),
}
KINDS = {name: kind for kind, names in TYPES.items() for name in names}


def describe_cause(error: BaseException) -> str:
    """One line: the type that decides the kind, and what it says; then what was raised from it."""
    lines = [_describe_error(link) for link in _walk_chain(error)]
    of_no_code = (
        line for line in lines if classify_cause(line) not in (CauseKind.CODE, CauseKind.UNKNOWN)
    )
    deciding = next(of_no_code, lines[0])
    return deciding if deciding == lines[0] else f"{deciding} ({lines[0]})"


def _walk_chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, then what it was raised from or while handling, as a traceback shows them."""
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
    """The cause of a cell whose process is gone."""
    return f"WorkerLost: {why}"


def is_lost_worker(cause: str) -> bool:
    """Whether its worker was taken from the cell, which need not be the fault of that: Ray ends the
    newest worker of a node without memory, whoever took it.
    """
    return classify_cause(cause) == CauseKind.LOST or cause == NODE_MEMORY


def classify_cause(cause: str) -> CauseKind:
    """Which kind of failure a cause tells of, by the type that it begins with."""
    name = cause.partition(":")[0]
    # Ours and torch's types are in KINDS; Python's are there by what they inherit.
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
    """Every leaf key in which two science configurations differ, sorted, with its value here and
    there; None where a key does not exist.

    One that is older than an option has it at its neutral value, as its signature says.
    """
    ours, theirs = flatten(here), flatten(there)
    keys = sorted(ours.keys() | theirs.keys())
    pairs = {key: (value_of(ours, key), value_of(theirs, key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def value_of(leaves: Mapping[str, Any], key: str) -> Any:
    """The value of a leaf; neutral where its group stands and does not have it, else None."""
    if key in leaves or key not in NEUTRAL:
        return leaves.get(key)
    group, _, inside = key.partition(".")
    stands = not inside or any(leaf.startswith(f"{group}.") for leaf in leaves)
    return NEUTRAL[key] if stands else None
