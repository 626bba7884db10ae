"""Evaluations of finished cells from their networks, their data or their stored predictions."""

TRACED_EXAMPLES = 1000  # default number of test images whose routing is traced
