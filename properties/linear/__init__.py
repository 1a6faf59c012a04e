"""What must be true of linear attention, whose weights are products of features: a state of fixed size replaces the matrix of weights."""

from . import contract  # makes the contract known before a theme names it  # noqa: F401
