"""The ways in: the command line, pytest, Python."""

import os
import sys

try:
    os.getcwd()
except FileNotFoundError:  # Hypothesis, which is imported next, looks for its folder here
    print("attncheck: the working directory is gone: change to one that exists", file=sys.stderr)
    sys.exit(2)
