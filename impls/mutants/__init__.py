"""Attentions wrong on purpose: a field guide to what goes wrong in attention code.

Each module is a theme; each function is one mistake over the shared honest core in `core`, and names where it happened and which property
catches it. `honest` holds the opposite: unusual ways to compute attention that are correct and must not be flagged.

    from impls.mutants import load_all
    mutants, honest = load_all()
    mutants["causal.one_too_far"].function(q, k, v, is_causal=True)
"""

from .registry import HONEST, MUTANTS, Mutant, Variant, forget, load_all

__all__ = ["HONEST", "MUTANTS", "Mutant", "Variant", "forget", "load_all"]
