"""What must be true of a module of attention: tokens in, tokens out, its weights inside."""

from . import contract  # makes the contract known before a theme names it  # noqa: F401
