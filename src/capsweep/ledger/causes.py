"""Why a cell failed, in one line, and of which kind: only some kinds can go better next time."""

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


NODE_MEMORY = "OutOfMemory: Ray ended the worker because its node ran out of memory"

# The same code on the same configuration fails in the same way.
DETERMINISTIC = frozenset({Kind.NOT_FINITE, Kind.CODE})

SIGNS = {
    Kind.LOST: ("workerlost",),  # first: it goes on with whatever is known of the loss
    Kind.NODE: ("nodeerror",),
    Kind.OUT_OF_MEMORY: (
        "outofmemory",
        "out of memory",
        "memoryerror",
        "can't allocate memory",
        "not enough memory",
        "[errno 12]",
    ),
    Kind.STORAGE: (
        "oserror",
        "storeerror",
        "permissionerror",
        "connectionerror",
        "timeouterror",
        "no space left",
    ),
    Kind.NOT_FINITE: ("nonfinitelosserror",),
    Kind.DATA: ("dataerror",),
}


def of(error: BaseException) -> str:
    """One line: the kind of error and what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def lost(why: str) -> str:
    """The cause of a cell whose process is gone."""
    return f"WorkerLost: {why}"


def is_loss(cause: str) -> bool:
    """Whether its worker was taken from the cell, which need not be the fault of that: Ray ends the
    newest worker of a node without memory, whoever took it.
    """
    return kind(cause) == Kind.LOST or cause == NODE_MEMORY


def kind(cause: str) -> Kind:
    """Which kind of failure a cause tells of; anything unknown is the code's."""
    text = cause.lower()
    return next((kind for kind, signs in SIGNS.items() if any(s in text for s in signs)), Kind.CODE)


def can_succeed(cause: str) -> bool:
    """Whether running the cell again, as it is, may help."""
    return kind(cause) not in DETERMINISTIC
