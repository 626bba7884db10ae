"""Data sets as uint8 tensors on the training device; batches as whole-batch tensor operations."""
