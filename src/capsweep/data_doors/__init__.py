"""`capsweep data ...`: data sets of shards, made, verified, looked at."""

from capsweep.cli.command import Commands, add_group
from capsweep.data_doors import describing, making, verifying


def add(doors: Commands) -> None:
    """Add `data` and its commands to the parser."""
    commands = add_group(doors, "data", "data sets of shards: make, verify, look at them")
    making.add(commands)
    verifying.add(commands)
    describing.add(commands)
