"""What is asked of trained models, or of what they said: attacks, crops, ensembles, distances."""
