"""Code that all packages share: output to a terminal, and the imports of Ray and Lightning."""
