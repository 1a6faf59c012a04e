"""Mistakes of caches."""
