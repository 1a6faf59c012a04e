"""Mistakes of attention(q, k, v), forward and backward."""
