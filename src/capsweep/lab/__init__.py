"""The laboratory: questions to trained cells, and benchmarks. The product imports none of it."""
