"""``python -m properties`` is ``attncheck`` in a clone."""

from .engine.cli import entry

entry()
