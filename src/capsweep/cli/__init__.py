"""The commands of `capsweep`. A module has one command or a group of commands."""

from capsweep.cli.program import main as main
