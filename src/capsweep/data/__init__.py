"""Readers of data sets, and batches that are made by tensor operations on the training device."""
