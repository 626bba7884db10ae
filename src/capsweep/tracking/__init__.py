"""The copy of the ledger's content at Weights & Biases. No torch is imported."""
