"""`capsweep data make`: write the shards of a data set, or what is missing of them."""

import argparse

from capsweep.command import Commands, add_command

TEXT = "write the shards of a data set, or what is missing of them"


def add(commands: Commands) -> None:
    """Add `make` to the parser."""
    make = add_command(commands, "make", _make, TEXT)
    make.add_argument("name", help="of the data set: multimnist, ...")
    make.add_argument(
        "overrides", nargs="*", help="Hydra overrides of dataset=NAME: dataset.source=digits"
    )
    make.add_argument("--pairs", type=int, metavar="N", help="per digit: examples are N times it")
    make.add_argument("--shards", type=int, metavar="N", help="files of the training split")
    make.add_argument("--store", default="pixels", help="pixels (default), or virtual: no shards")
    make.add_argument("--with-sources", action="store_true", help="also the two digits alone")
    make.add_argument("--gzip", type=int, metavar="LEVEL", help="compress, 0 to 9; default: not")
    make.add_argument("--storage", metavar="FOLDER", help="the data set's own; default: DATA/NAME")
    make.add_argument("--data-dir", help="where the source images are")
    make.add_argument("--executor", default="ray", help="ray (default), or local: this process")
    make.add_argument("--address", help="a running Ray cluster; default: a local one")
    make.add_argument("--dry-run", action="store_true", help="print the plan, and write nothing")
    make.add_argument("--json", action="store_true", help="for programs")


def _make(parsed: argparse.Namespace) -> int:
    raise NotImplementedError
