"""The ledger, which stores finished and failed cells by their signature. It imports no torch."""
