"""``python -m properties`` is ``attncheck`` in a clone."""

from .engine.doors.cli import entry

entry()
