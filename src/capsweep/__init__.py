"""Experiment sweeps for capsule networks."""

import gc
from typing import Any

__version__ = "0.1.0"

# A worker imports five thousand modules. A quarter of the time for these imports went into Python's
# full garbage collection, so the full collection now runs a hundred times less often. New objects
# are collected as often as before.
gc.set_threshold(*gc.get_threshold()[:2], 1000)

# The public names of the package, each with the module and object that it stands for. A name is
# imported when it is first used, so that `import capsweep` stays quick.
_PUBLIC = {
    "Ledger": "capsweep.ledger.ledger:Ledger",
    "build_network": "capsweep.training.build:build_network",
    "compose_cell": "capsweep.config.compose:cell",
    "load_predictions": "capsweep.ledger.ledger:load_predictions",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    from pkgutil import resolve_name

    if name not in _PUBLIC:
        raise AttributeError(f"module 'capsweep' has no attribute {name!r}")
    return resolve_name(_PUBLIC[name])
