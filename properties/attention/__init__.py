"""What must be true of every attention: softmax, values, masks, causality, symmetry, heads, scaling, chunks, numbers, gradients."""

from . import contract  # makes the contract known before a theme names it  # noqa: F401
