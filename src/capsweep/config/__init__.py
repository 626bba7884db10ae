"""What one run is: composed by Hydra, checked, canonical, signed. Knows no torch."""
