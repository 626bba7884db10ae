"""Reports of sweeps: tables, charts and pages, made from a ledger. No torch is imported."""
