"""The ledger: finished and failed cells, content-addressed by signature. Knows no torch."""
