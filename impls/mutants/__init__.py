"""Attentions wrong on purpose: a field guide to what goes wrong in attention code.

A folder is a chapter, that is a contract; a module is a theme; a function is one mistake over the chapter's honest core, and names where it
happened and which property catches it. The modules `honest…` hold the opposite: unusual ways to compute that are correct and must not be flagged.

A mutant's ``bug`` is its row in the catalogue of bugs that the project started from. Rows without a mutant, and why: a result that
depends on another layer (F03, G02, G03, G04: no contract is about a stack), a bias in a cache (F09: caches take none), the second
derivative (E21), a call inside ``torch.vmap`` (D29: ``@vmap`` is a way to call a target), and E29, which is C05 in another function.

    from impls.mutants import load_all
    mutants, honest = load_all()
    mutants["causal.one_too_far"].function(q, k, v, is_causal=True)
"""

from .registry import HONEST, MUTANTS, Mutant, Variant, forget, load_all

__all__ = ["HONEST", "MUTANTS", "Mutant", "Variant", "forget", "load_all"]
