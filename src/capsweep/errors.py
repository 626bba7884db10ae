"""What went wrong, in one line, for the person who typed the command."""


class UserError(ValueError):
    """A fault the user can cure: the message names the key or file, and the cure."""


class ConfigError(UserError):
    """A key, value or combination of the configuration that cannot be meant."""


class DataError(UserError):
    """A data file that is absent, truncated, altered or of another format."""


class DamageError(DataError):
    """A file of the ledger that is not what was stored there; other cells are not concerned."""


class NodeError(UserError):
    """A node of a cluster that cannot run cells as its driver wants them; another one may."""


class UnreachableError(ConfigError):
    """Nobody answers: the cluster, its dashboard or the tunnel is not there."""


class NotApplicableError(UserError):
    """A question that this cell's network or data set has no answer to: no fault of either."""


class AccuracyNotReachedError(RuntimeError):
    """Training ended before the accuracy at which it was to be compared."""


class LeftEarlyError(RuntimeError):
    """A cell ended at the end of an epoch because it was asked to; its checkpoint is kept."""


class NonFiniteLossError(RuntimeError):
    """The loss or a metric became NaN or infinite; the message names the step or epoch."""


class CodeChangedError(RuntimeError):
    """Capsweep's files were edited while it runs: the cell ends, and did not fail."""


# torch and the system tell that memory is short in the text of a RuntimeError or OSError.
SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "[errno 12]")


def is_short_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory, or that of a GPU, ran out."""
    says_so = any(sign in str(error).lower() for sign in SHORT_OF_MEMORY)
    return isinstance(error, MemoryError) or says_so
