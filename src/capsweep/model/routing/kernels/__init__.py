"""Kernels for accelerators, one file per variant; none is imported before it is asked for."""
