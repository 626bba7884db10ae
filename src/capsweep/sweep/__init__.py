"""Sweeps: read a sweep file, list its cells, plan them, and run those that are missing."""
