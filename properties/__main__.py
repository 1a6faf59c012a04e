"""``attncheck``, and ``python -m properties``, which is the same in a clone. The rest is imported where an interruption is heard."""

import sys


def entry() -> None:
    """The console script."""
    try:
        from .engine.doors.cli import entry

        entry()
    except KeyboardInterrupt:  # before there was a run
        print("attncheck: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    entry()
