"""Why a cell failed, in one line, and of which kind: only some kinds can go better next time.

The kind follows from the type of the exception, or of one that it was raised from; the line begins
with the name of that type. Only what is provably of the code is not tried again.
"""

import builtins
import re
from collections.abc import Iterator
from enum import StrEnum


class Kind(StrEnum):
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
DETERMINISTIC = frozenset({Kind.NOT_FINITE, Kind.CODE})

# By the name of a type; a type that is not here is of the kind of its nearest base.
KINDS = {
    "WorkerLost": Kind.LOST,
    "WorkerLostError": Kind.LOST,
    "NodeError": Kind.NODE,
    "OutOfMemory": Kind.OUT_OF_MEMORY,
    "OutOfMemoryError": Kind.OUT_OF_MEMORY,
    "MemoryError": Kind.OUT_OF_MEMORY,
    "StoreError": Kind.STORAGE,
    "OSError": Kind.STORAGE,
    "NonFiniteLossError": Kind.NOT_FINITE,
    "DataError": Kind.DATA,
    "JSONDecodeError": Kind.DATA,  # a file that is being written, or was cut short
    "UnicodeError": Kind.DATA,
    "UserError": Kind.CODE,
    "ConfigError": Kind.CODE,
    "AccuracyNotReachedError": Kind.CODE,
    "ArithmeticError": Kind.CODE,
    "AssertionError": Kind.CODE,
    "AttributeError": Kind.CODE,
    "ImportError": Kind.CODE,
    "LookupError": Kind.CODE,
    "NameError": Kind.CODE,
    "NotImplementedError": Kind.CODE,
    "RecursionError": Kind.CODE,
    "TypeError": Kind.CODE,
    "ValueError": Kind.CODE,
}

# torch and the system tell that memory is short in the text of a RuntimeError or OSError.
SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "[errno 12]")
OF_A_DEVICE = re.compile(r"RankFailedError: device \d+ of \d+: ")


def of(error: BaseException) -> str:
    """One line: the type that decides the kind, and what it says; then what was raised from it."""
    lines = [_line(one) for one in _chain(error)]
    of_no_code = (line for line in lines if kind(line) not in (Kind.CODE, Kind.UNKNOWN))
    deciding = next(of_no_code, lines[0])
    return deciding if deciding == lines[0] else f"{deciding} ({lines[0]})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, then what it was raised from or while handling, as a traceback shows them."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        yield one
        seen.add(id(one))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _line(error: BaseException) -> str:
    line = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if kind(line) is not Kind.UNKNOWN:
        return line
    known = next((base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS), None)
    return line if known is None else f"{known}: {line}"


def lost(why: str) -> str:
    """The cause of a cell whose process is gone."""
    return f"WorkerLost: {why}"


def is_loss(cause: str) -> bool:
    """Whether its worker was taken from the cell, which need not be the fault of that: Ray ends the
    newest worker of a node without memory, whoever took it.
    """
    return kind(cause) == Kind.LOST or cause == NODE_MEMORY


def kind(cause: str) -> Kind:
    """Which kind of failure a cause tells of, by the type that it begins with."""
    line = OF_A_DEVICE.sub("", cause)
    found = _kind_of(line.partition(":")[0])
    may_be_memory = found in (Kind.UNKNOWN, Kind.STORAGE)
    if may_be_memory and any(sign in line.lower() for sign in SHORT_OF_MEMORY):
        return Kind.OUT_OF_MEMORY
    return found


def _kind_of(name: str) -> Kind:
    """By the name of a type: ours and torch's in KINDS, Python's by what they inherit."""
    known = getattr(builtins, name, None)
    names = [base.__name__ for base in known.__mro__] if isinstance(known, type) else [name]
    return next((KINDS[base] for base in names if base in KINDS), Kind.UNKNOWN)


def can_succeed(cause: str) -> bool:
    """Whether running the cell again, as it is, may help."""
    return kind(cause) not in DETERMINISTIC
