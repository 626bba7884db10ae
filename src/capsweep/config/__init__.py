"""The configuration of one run: composed by Hydra, checked and hashed. Imports no torch."""
