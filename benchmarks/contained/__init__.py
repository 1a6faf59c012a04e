"""Cheats: wrong attentions that try to pass all the same, and what becomes of each."""
