"""`capsweep eval ...`: what is computed from finished cells beyond their errors."""

TEXT = "ask more of finished cells than their errors"
