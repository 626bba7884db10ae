"""The configuration of one run: composed by Hydra, checked and hashed. No torch is imported."""
