"""What went wrong, in one line, for the person who typed the command."""


class UserError(ValueError):
    """A fault the user can cure: the message names the key or file, and the cure."""


class ConfigError(UserError):
    """A key, value or combination of the configuration that cannot be meant."""


class DataError(UserError):
    """A data file that is absent, truncated, altered or of another format."""


class NotApplicableError(UserError):
    """A question that this cell's network or data set has no answer to: no fault of either."""


class AccuracyNotReachedError(RuntimeError):
    """Training ended before the accuracy at which it was to be compared."""


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite; the message names the first bad step."""
