"""Shards: what composing, writing, hashing and reading them costs, with noise for digits.

Everything is on one core, and what is compared takes turns in one process.
"""
