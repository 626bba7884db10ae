"""A sweep: a question, the cells that answer it, and what is still missing."""
