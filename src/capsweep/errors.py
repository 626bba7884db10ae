"""The exceptions of capsweep; each message is one line for the person who typed the command."""


class UserError(ValueError):
    """A fault that the user can cure. The message names the key or file, and the cure."""


class ConfigError(UserError):
    """A key, a value, or a combination of values that a configuration cannot have."""


class DataError(UserError):
    """A data file that is missing, truncated or altered, or has an unknown format."""


class DamageError(DataError):
    """A file of the ledger that was damaged after it was written. Other cells are not affected."""


class NodeError(UserError):
    """A node of a cluster that cannot run the cells of this sweep. Other nodes may run them."""


class UnreachableError(ConfigError):
    """An address that does not answer: the cluster, its dashboard or the tunnel is down."""


class NotApplicableError(UserError):
    """An evaluation that is impossible for a cell's network or data set. The cell is sound."""


class AccuracyNotReachedError(RuntimeError):
    """A training that ended before it reached its `stop_accuracy`."""


class LeftEarlyError(RuntimeError):
    """A cell that a limit or a signal stopped before its last epoch. Its checkpoint is kept."""


class NonFiniteLossError(RuntimeError):
    """A loss or metric that became NaN or infinite. The message names the step or epoch."""


class CodeChangedError(RuntimeError):
    """Worker and driver have different code, after an edit. The cell does not count as failed."""


# torch and the system report a lack of memory only in the text of a RuntimeError or OSError.
SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "[errno 12]")


def is_short_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of the machine or of a GPU ran out."""
    says_so = any(sign in str(error).lower() for sign in SHORT_OF_MEMORY)
    return isinstance(error, MemoryError) or says_so
