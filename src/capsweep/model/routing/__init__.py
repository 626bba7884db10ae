"""Routing variants, one file each; base.py is what they have in common."""
