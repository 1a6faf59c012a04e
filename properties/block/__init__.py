"""What must be true of encoder and decoder layers."""

from . import contract  # makes the contract known before a theme names it  # noqa: F401
