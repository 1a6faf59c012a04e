"""Mistakes of multi-head layers."""
