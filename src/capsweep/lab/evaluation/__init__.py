"""What is computed from finished cells by their networks, their data, or their predictions."""

TRACED_EXAMPLES = 1000  # whose routing is traced, unless another number is asked for
