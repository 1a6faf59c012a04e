"""What must be true of every multi-head layer."""

from . import contract  # makes the contract known before a theme names it  # noqa: F401
