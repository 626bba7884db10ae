"""Experiment sweeps for capsule networks."""

__version__ = "0.1.0"
