"""Where bytes lie: atomic files, locks, object stores, the user's cache, verified downloads."""
