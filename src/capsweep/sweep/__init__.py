"""Sweeps: read a sweep file, list its cells, plan the cells, and run the missing cells."""
