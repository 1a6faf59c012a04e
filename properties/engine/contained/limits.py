"""What a worker may use: limits that the kernel of the system keeps."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36  # prctl(2)
MEMORY = 8 * 2**30  # bytes that a worker may allocate, or half of the machine's if that is less
FILE = 2**30  # bytes of a file that it may write
TASKS = max(256, 8 * (os.cpu_count() or 1))  # processes and threads that it may have at a time, with those that it starts


def prctl(option: int, value: int) -> None:
    """See prctl(2); Linux alone has it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """This process is killed, or gets another signal, when the one that made it has gone."""
    prctl(PR_SET_PDEATHSIG, number)


def memory_allowed() -> int:
    """Bytes of memory that a worker may allocate."""
    return min(MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def ended_for_memory() -> int:
    """How many processes the system has ended so far because the machine had no memory left; 0 where it does not say."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


EXCUSES = 3  # a target may see to it itself that no memory is left
_so_far = ended_for_memory()
_excused = 0


def no_memory_was_left() -> bool:
    """Whether the system has ended processes for want of memory since this was last asked, a target's among the first; a few times at most."""
    global _so_far, _excused
    before, _so_far = _so_far, ended_for_memory()
    if _so_far <= before or _excused >= EXCUSES:
        return False
    _excused += 1
    return True


def go_first() -> None:
    """Where the machine has no memory left, this process and what it starts are the first to go."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def without_gpus(device: str) -> None:
    """Where the CPU is asked for, JAX is kept from GPUs, on which it would compute by itself, and take most of their memory."""
    if device == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def restrict() -> None:
    """Limits of this process and of all that it starts: memory, files, no dumps. Memory that it already has is not counted."""
    go_first()
    held = 0
    with suppress(OSError, ValueError, IndexError):
        held = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    for what, most in ((resource.RLIMIT_DATA, held + memory_allowed()), (resource.RLIMIT_FSIZE, FILE), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        if hard == resource.RLIM_INFINITY or hard > most:
            with suppress(ValueError, OSError):
                resource.setrlimit(what, (most, most))
