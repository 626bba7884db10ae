"""`capsweep data info`: what a folder of shards holds."""

from capsweep.command import Commands


def add(commands: Commands) -> None:
    """Add `info` to the parser."""
