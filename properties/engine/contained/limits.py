"""What a worker may use, and where it may reach: limits that the kernel of the system keeps."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36  # prctl(2)
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # unshare(2)
MEMORY = 8 * 2**30  # bytes that a worker may allocate, or half of the machine's if that is less
FILE = 2**30  # bytes of a file that it may write
TASKS = max(256, 8 * (os.cpu_count() or 1))  # processes and threads that it may have at a time, with those that it starts
COUNTED_APART = (5, 14)  # from this version of Linux on a limit of processes holds for a namespace, not for all that a user runs


def prctl(option: int, value: int) -> None:
    """See prctl(2)."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_with_parent() -> None:
    """This process is killed when the one that made it has gone."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def memory_allowed() -> int:
    """Bytes of memory that a worker may allocate."""
    return min(MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def restrict() -> None:
    """Limits of this process and of all that it starts: memory, files, no dumps. Memory that it already has is not counted."""
    held = 0
    with suppress(OSError, ValueError, IndexError):
        held = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    for what, most in ((resource.RLIMIT_DATA, held + memory_allowed()), (resource.RLIMIT_FSIZE, FILE), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        if hard == resource.RLIM_INFINITY or hard > most:
            with suppress(ValueError, OSError):
                resource.setrlimit(what, (most, most))


def without_network() -> bool:
    """Leave the network, in a namespace without any; False where the system does not allow it."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    with suppress(OSError):  # the same names inside; nothing depends on it
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= COUNTED_APART:
        with suppress(ValueError, OSError):  # it does not bind root: the judge counts, too
            resource.setrlimit(resource.RLIMIT_NPROC, (TASKS, TASKS))
    return True
