"""What must be true of caches for decoding."""

from . import contract  # makes the contract known before a theme names it  # noqa: F401
