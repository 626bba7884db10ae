"""The states of a cell; why one failed, in one line, and of which kind: some are tried again.

The kind follows from the type of the exception, or of one that it was raised from; the line begins
with the name of that type. Only what is provably of the code is not tried again.
"""

import builtins
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

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

# By the name of a type; a type that is not here is of the kind of its nearest base.
KINDS = {
    "WorkerLost": CauseKind.LOST,
    "WorkerLostError": CauseKind.LOST,
    "NodeError": CauseKind.NODE,
    "OutOfMemory": CauseKind.OUT_OF_MEMORY,
    "OutOfMemoryError": CauseKind.OUT_OF_MEMORY,
    "MemoryError": CauseKind.OUT_OF_MEMORY,
    "StoreError": CauseKind.STORAGE,
    "OSError": CauseKind.STORAGE,
    "NonFiniteLossError": CauseKind.NOT_FINITE,
    "DataError": CauseKind.DATA,
    "JSONDecodeError": CauseKind.DATA,  # a file that is being written, or was cut short
    "UnicodeError": CauseKind.DATA,
    "UserError": CauseKind.CODE,
    "ConfigError": CauseKind.CODE,
    "AccuracyNotReachedError": CauseKind.CODE,
    "ArithmeticError": CauseKind.CODE,
    "AssertionError": CauseKind.CODE,
    "AttributeError": CauseKind.CODE,
    "ImportError": CauseKind.CODE,
    "LookupError": CauseKind.CODE,
    "NameError": CauseKind.CODE,
    "NotImplementedError": CauseKind.CODE,
    "RecursionError": CauseKind.CODE,
    "TypeError": CauseKind.CODE,
    "ValueError": CauseKind.CODE,
}

# torch and the system tell that memory is short in the text of a RuntimeError or OSError.
SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "[errno 12]")
OF_A_DEVICE = re.compile(r"RankFailedError: device \d+ of \d+: ")


def describe_cause(error: BaseException) -> str:
    """One line: the type that decides the kind, and what it says; then what was raised from it."""
    lines = [_describe_error(one) for one in _walk_chain(error)]
    of_no_code = (
        line for line in lines if kind_of_cause(line) not in (CauseKind.CODE, CauseKind.UNKNOWN)
    )
    deciding = next(of_no_code, lines[0])
    return deciding if deciding == lines[0] else f"{deciding} ({lines[0]})"


def _walk_chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, then what it was raised from or while handling, as a traceback shows them."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        yield one
        seen.add(id(one))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _describe_error(error: BaseException) -> str:
    line = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if kind_of_cause(line) is not CauseKind.UNKNOWN:
        return line
    known = next((base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS), None)
    return line if known is None else f"{known}: {line}"


def describe_loss(why: str) -> str:
    """The cause of a cell whose process is gone."""
    return f"WorkerLost: {why}"


def is_loss(cause: str) -> bool:
    """Whether its worker was taken from the cell, which need not be the fault of that: Ray ends the
    newest worker of a node without memory, whoever took it.
    """
    return kind_of_cause(cause) == CauseKind.LOST or cause == NODE_MEMORY


def kind_of_cause(cause: str) -> CauseKind:
    """Which kind of failure a cause tells of, by the type that it begins with."""
    line = OF_A_DEVICE.sub("", cause)
    found = _kind_of(line.partition(":")[0])
    may_be_memory = found in (CauseKind.UNKNOWN, CauseKind.STORAGE)
    if may_be_memory and any(sign in line.lower() for sign in SHORT_OF_MEMORY):
        return CauseKind.OUT_OF_MEMORY
    return found


def _kind_of(name: str) -> CauseKind:
    """By the name of a type: ours and torch's in KINDS, Python's by what they inherit."""
    known = getattr(builtins, name, None)
    names = [base.__name__ for base in known.__mro__] if isinstance(known, type) else [name]
    return next((KINDS[base] for base in names if base in KINDS), CauseKind.UNKNOWN)


def can_succeed(cause: str) -> bool:
    """Whether running the cell again, as it is, may help."""
    return kind_of_cause(cause) not in DETERMINISTIC
