"""``python -m properties`` is ``attncheck`` in a clone."""

import sys

try:
    from .engine.doors.cli import entry

    entry()
except KeyboardInterrupt:  # before there was a run
    sys.exit(130)
