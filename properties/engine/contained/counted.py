"""How many processes and threads there are, and how much memory they take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .limits import TASKS, memory_allowed

SHARED = 2**30  # bytes of memory that are not a target's, at most: of libraries, and of the arrays that it is given
FEW = 32  # processes of which it is worth while to count what each has of what they share


def started(crowd: int) -> str:
    """What is said of a target that has started so many; "" if it may."""
    return f"started {crowd} processes and threads" if crowd > TASKS else ""


def threads() -> int:
    """The number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def load() -> int:
    """An open file for ``tasks``; −1 where there is none."""
    try:
        return os.open("/proc/loadavg", os.O_RDONLY)
    except OSError:
        return -1


def tasks(of: int) -> tuple[int, int]:
    """(those that run or wait for a core at this moment, all) of the processes and threads of the system, by one short read of ``load()``.

    Zeros where it does not say; see proc_loadavg(5).
    """
    try:
        now, _, every = os.pread(of, 64, 0).split()[3].partition(b"/")
        return int(now), int(every)
    except (OSError, ValueError, IndexError):
        return 0, 0


def processes() -> list[tuple[int, int, int, int]]:
    """(process, parent, session, number of threads) of every process that can be seen."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    found.append((int(entry), int(fields[1]), int(fields[3]), int(fields[17])))
    return found


def taken(pids: Iterable[int], held: int = 0) -> str:
    """What is said of a target whose processes take so much memory together; "" if they may. ``held``: what each had from the beginning.

    A limit of the system counts one process, and not what is mapped to be shared.
    """
    each, most = {pid: memory(pid) for pid in pids}, memory_allowed() + SHARED
    more = {pid: max(own - held, 0) for pid, (own, _) in each.items()}
    common = max((shared for _, shared in each.values()), default=0)
    whole = sum(more.values()) + common
    if sum(own for own, _ in each.values()) + common > most and len(each) <= FEW:
        # what a fork has in common with its parent was counted twice, and what it has written over that, never
        may_be = sum(max(more[pid], min(own, _touched(pid))) for pid, (own, _) in each.items()) + common
        if may_be > most:
            alone, common = (sum(parts) for parts in zip(*(_parts(pid) or (more[pid], each[pid][1]) for pid in each), strict=True))
            whole = alone + max(common - held, 0)
    return f"took {whole / 2**30:.1f} GiB of memory, with all that it started" if whole > most else ""


def memory(pid: int | str) -> tuple[int, int]:
    """Bytes of memory of a process's own, and of what is made to be shared; see proc_pid_status(5)."""
    with suppress(OSError):
        said = dict(re.findall(r"^Rss(Anon|Shmem):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
        return 1024 * int(said.get("Anon", 0)), 1024 * int(said.get("Shmem", 0))
    return 0, 0


def _touched(pid: int) -> int:
    """Bytes of pages that a process was given since it was forked, at most, again and again if it has given them back; see proc_pid_stat(5)."""
    with suppress(OSError, ValueError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
    return 0


def _parts(pid: int) -> tuple[int, int] | None:
    """Bytes of memory that nobody else has, and its part of what it shares, if this may be known; it takes time; see proc_pid_smaps(5)."""
    with suppress(OSError):
        told = dict(re.findall(r"^(Pss|Private_Dirty):\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
        if "Pss" in told:
            alone = 1024 * int(told.get("Private_Dirty", 0))
            return alone, 1024 * int(told["Pss"]) - alone
    return None
