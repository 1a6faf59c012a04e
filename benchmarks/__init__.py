"""Measurements that anyone can repeat; none of them is a timed test."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the doors do: tiny arrays are faster with one thread
