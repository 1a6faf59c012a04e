"""Mistakes of packed sequences."""
