"""What must be true of positions: sinusoids, rotations, tables, slopes and buckets."""

from . import contract  # makes the contract known before a theme names it  # noqa: F401
