"""Mistakes of encoder and decoder layers."""
