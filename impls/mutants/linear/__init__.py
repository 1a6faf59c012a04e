"""Mistakes of linear attention."""
