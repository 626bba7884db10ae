"""Evaluations of finished cells. They use the networks, data, predictions or metrics of cells."""

TRACED_EXAMPLES = 1000  # default number of test images whose routing is traced
