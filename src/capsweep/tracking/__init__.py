"""Weights & Biases: a second copy of what the ledger has first. Imports no torch."""
