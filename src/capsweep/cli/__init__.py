"""The commands of `capsweep`; each module has one command, or a group of them."""

from capsweep.cli.program import main as main
