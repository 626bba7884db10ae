"""Code that several packages share: terminal output, and the imports of Ray and Lightning."""
