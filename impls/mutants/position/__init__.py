"""Mistakes of positions."""
