"""What a sweep remembers beside its cells: seeds that were added, what a search has tried.

It is below `places.storage` as typed, folder or URL, since a table without it would be another one.
"""

from capsweep.config.places import Places
from capsweep.storage.stores import Store, open_store


def open_memory(here: Places) -> Store:
    """Where sweeps of this storage remember. Raises UserError naming `places.storage`."""
    return open_store(here.kept, "places.storage")
