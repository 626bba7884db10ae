"""Pure statistics: arrays in, numbers out. Imports nothing of ours."""
