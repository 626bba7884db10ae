"""The laboratory: evaluations of trained cells, and benchmarks. No other package depends on it."""
