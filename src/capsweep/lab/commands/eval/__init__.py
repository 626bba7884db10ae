"""`capsweep eval ...`: results of finished cells beyond their errors."""

TEXT = "compute more from finished cells than their errors"
