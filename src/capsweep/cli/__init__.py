"""The commands of `capsweep`, a file each."""

from capsweep.cli.program import main as main
