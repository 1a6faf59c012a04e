"""The ways in: the command line, pytest, Python."""

import os
import sys

try:
    os.getcwd()
except FileNotFoundError:  # Hypothesis, which is imported next, looks for its folder here
    ours = sys.argv[0] == os.path.join(__file__.rpartition(f"{os.sep}engine{os.sep}")[0], "__main__.py")
    if not ours and os.path.basename(sys.argv[0]) != "attncheck":  # it is somebody's program, which is told by the error
        raise
    print("attncheck: the working directory is gone: change to one that exists", file=sys.stderr)
    sys.exit(2)
