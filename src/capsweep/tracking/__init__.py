"""The copy of the ledger's content at Weights & Biases.

This package does not import torch.
"""
