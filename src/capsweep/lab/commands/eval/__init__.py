"""The commands `capsweep eval ...`, which compute more from finished cells than their errors."""

TEXT = "compute more from finished cells than their errors"
