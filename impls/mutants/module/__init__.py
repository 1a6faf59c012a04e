"""Mistakes of modules of attention."""
