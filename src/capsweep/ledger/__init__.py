"""The ledger, which stores finished and failed cells by signature. The package imports no torch."""
