"""`capsweep data verify`: every file that is missing, truncated, altered or surplus."""

from capsweep.command import Commands


def add(commands: Commands) -> None:
    """Add `verify` to the parser."""
