"""Sweeps on clusters: as jobs of a running Ray cluster, or as batch jobs or job arrays of Slurm."""
