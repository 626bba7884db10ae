"""The configuration of one run: composed by Hydra, checked and hashed.

This package does not import torch.
"""
