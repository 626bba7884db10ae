"""The answer: tables from ledgers. Knows no torch."""
