"""Sweeps on clusters: as jobs of a running Ray, and as batch jobs and arrays of Slurm."""
