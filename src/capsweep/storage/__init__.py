"""Storage: atomic files, locks, object stores, the user's cache, and verified official files."""
