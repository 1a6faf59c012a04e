"""What must be true of packed sequences."""

from . import contract  # makes the contract known before a theme names it  # noqa: F401
