"""All entries."""

from __future__ import annotations

from benchmarks.first_contact.table_kernels import MORE
from benchmarks.first_contact.table_numpy import NUMPY
from benchmarks.first_contact.table_torch import TORCH

ENTRIES = (*NUMPY, *TORCH, *MORE)
