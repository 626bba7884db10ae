"""The commands `capsweep eval ...`, which evaluate finished cells beyond their test errors."""

TEXT = "evaluate finished cells beyond their test errors"
