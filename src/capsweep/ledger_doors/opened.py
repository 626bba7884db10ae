"""The ledger that the options of a door name."""

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsweep.ledger.ledger import Ledger


def opened(parsed: argparse.Namespace) -> "Ledger":
    """That of --ledger, else of --storage, else of the environment's STORAGE."""
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger

    storage = parsed.storage or os.environ.get("STORAGE", "outputs")
    return Ledger(places.ledger_of(storage, parsed.ledger))
