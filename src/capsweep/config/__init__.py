"""The configuration of one run: composed by Hydra, checked and hashed, without torch."""
