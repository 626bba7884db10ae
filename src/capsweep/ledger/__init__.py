"""The ledger: finished and failed cells, stored by signature. The package does not import torch."""
