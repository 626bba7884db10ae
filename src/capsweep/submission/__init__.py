"""Sweeps that run as jobs of a Ray cluster: submitted, watched, stopped."""
