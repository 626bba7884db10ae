"""The ledger, which stores finished and failed cells, keyed by signature. It imports no torch."""
