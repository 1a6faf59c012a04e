"""The ways in: the command line, pytest, Python."""

import os
import sys

try:
    os.getcwd()
except FileNotFoundError:  # Hypothesis, which is imported next, looks for its folder here
    if os.path.basename(sys.argv[0]) not in ("attncheck", "-m"):  # it is somebody's program, which is told by the error
        raise
    print("attncheck: the working directory is gone: change to one that exists", file=sys.stderr)
    sys.exit(2)
