"""Reports of sweeps: tables, charts and pages, made from a ledger. Imports no torch."""
