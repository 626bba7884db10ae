"""What is computed from trained cells: figures, attacks, crops and ensembles."""
