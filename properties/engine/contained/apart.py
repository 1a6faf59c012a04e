"""What keeps a worker from every other process and from the network: namespaces of its own; where the system allows none, a filter of calls.

In namespaces the worker is a child of their first process: whatever it starts is killed by the system when that one ends, and other processes
have no number there, so that nothing can be sent to them. See namespaces(7), seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from .counted import load, memory, processes, started, taken, tasks
from .limits import PR_SET_DUMPABLE, TASKS, end_with_parent, go_first, prctl
from .written import into_a_domain, of_the_system, only_temporary_files

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000  # unshare(2)
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
APART = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18  # mount(2)
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38  # prctl(2)
CAPABILITIES = 64  # more than there are
CAPABILITY_VERSION = 0x20080522  # capset(2)
COUNTED_APART = (5, 14)  # from this version of Linux on a limit of processes holds for a namespace, not for all that a user runs

LOOK = 0.05  # seconds between looks at what was started in namespaces
WEIGHED, RARELY = 0.2, 10  # seconds between looks at the memory of all of it, at least; how many times as long as a look takes
BEFORE_ALL = -20  # the priority of who looks; see setpriority(2)
TOLD = 128  # bytes in which it is said what has ended a worker

NAMESPACES, FILTER, NOTHING = "namespaces", "filter", "nothing"  # what keeps a worker apart


def in_namespaces(
    work: Callable[[], object], hidden: Sequence[str], held: Sequence[str] = (), device: str = "cpu"
) -> tuple[int, socket.socket] | None:
    """A process that does some work in namespaces of its own: (the first process there, what tells its exit status). None if there can be none.

    ``hidden``: files and folders that are empty there; ``held``: that can be read alone, wherever they lie; ``device``: on what it works.
    """
    own, other = socket.socketpair()
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    between = os.fork()
    if not between:  # it enters them, which holds for its children, and goes
        try:
            own.close()
            with suppress(OSError):  # the first process looks after many; root may have it come before them, for whom there is no limit
                os.setpriority(os.PRIO_PROCESS, 0, BEFORE_ALL)
            first = os.fork() if _entered() else 0
            if first == 0 and _is_first():
                _first(other, work, partial(_hide, hidden, held, device), priority)
            other.send(b"%d" % first)
        finally:
            os._exit(0)
    other.close()
    os.waitpid(between, 0)
    first = int(own.recv(32) or b"0")
    if not first:
        own.close()
        return None
    own.send(b".")  # from now on it is a child of this process
    return first, own


def _is_first() -> bool:
    return os.getpid() == 1


def _entered() -> bool:
    """Whether the namespaces are there, for the children of this process."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | APART) != 0:
        return bool(libc.unshare(APART) == 0)  # with the right to do so there is no need of another user
    with suppress(OSError):  # the same names inside; nothing depends on it
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= COUNTED_APART:
        with suppress(ValueError, OSError):  # it does not bind root: the judge counts, too
            resource.setrlimit(resource.RLIMIT_NPROC, (TASKS, TASKS))
    return True


def _first(other: socket.socket, work: Callable[[], object], hide: Callable[[], None], priority: int) -> None:
    """The first process of the namespaces: it starts the worker, and ends with it, and all that is left there with it. Never returns."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what has no handler here does not come from the worker
        if not other.recv(1):
            return
        end_with_parent()
        prctl(PR_SET_DUMPABLE, 0)  # the worker may not look into it
        os.setsid()
        go_first()
        hide()
        worker = os.fork()
        if not worker:
            other.close()
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, priority)
            if inner := os.fork():
                _between(inner)
            prctl(PR_SET_DUMPABLE, 1)
            work()
        fd = other.fileno()
        os.closerange(0, fd)
        os.closerange(fd + 1, 65536)
        other.send(_looking_after(worker).encode())
    finally:
        os._exit(0)  # and with it whatever is left there


def _between(worker: int) -> None:
    """The worker's parent, which ends as it does: not the first process, whose number would show what the worker is in. Never returns."""
    os.closerange(0, 65536)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if status >= 0:
        os._exit(status)
    with suppress(OSError):  # of SIGKILL there is no other action
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    os._exit(1)


def _looking_after(worker: int) -> str:
    """The exit status of a child, when it has ended, or that too much was started, as soon as it is."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    alone = os.path.islink("/proc/self") and os.readlink("/proc/self") == str(os.getpid())  # nobody else is counted
    of, before, next_weighing, (held, _) = load(), 0, 0.0, memory("self")
    while True:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == worker:
                    return str(os.waitstatus_to_exitcode(found[1]))
        # most of the time one number says that nothing was started
        if alone and abs((now := tasks(of)[1]) - before) > TASKS // 8:
            before = now
            if said := started(sum(threads for pid, _, _, threads in processes() if pid != os.getpid())):
                os.kill(-1, signal.SIGKILL)  # all at once: nobody is left who could fork meanwhile
                return said
        if alone and (began := time.monotonic()) > next_weighing:
            if said := taken((pid for pid, *_ in processes() if pid != os.getpid()), held):
                os.kill(-1, signal.SIGKILL)
                return said
            next_weighing = began + max(WEIGHED, RARELY * (time.monotonic() - began))
        signal.sigtimedwait([signal.SIGCHLD], LOOK)


def _hide(places: Sequence[str], held: Sequence[str], device: str) -> None:
    """Only the processes of these namespaces are in /proc, nothing in some files and folders, and others are held, as far as the system allows it."""
    mount = ctypes.CDLL(None).mount
    if mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:  # otherwise others would see what is mounted here
        into_a_domain()
        return
    kept = only_temporary_files(held, places, device)
    how = MS_NOSUID | MS_NODEV | MS_NOEXEC
    if device == "cpu":  # a target whose user is root's could change the system there
        mount(b"proc", b"/proc", b"proc", how | MS_RDONLY, None)
    elif mount(b"proc", b"/proc", b"proc", how, None) == 0:  # a driver writes the names of its threads there
        for own in of_the_system():
            mount(own, own, None, MS_BIND | MS_REC, None)
            mount(None, own, None, MS_BIND | MS_REMOUNT | how | MS_RDONLY, None)
    for place in places:
        if os.path.isdir(place):
            mount(b"nothing", os.fsencode(place), b"tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, None)
        elif os.path.exists(place):
            mount(os.devnull.encode(), os.fsencode(place), None, MS_BIND, None)
    if not kept:  # the last: nothing is mounted in a domain
        into_a_domain()


def without_capabilities() -> None:
    """This process and all that it starts may do what any process of its user may, and no more."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for one in range(CAPABILITIES):
        prctl(PR_CAPBSET_DROP, one)
    ctypes.CDLL(None).capset(struct.pack("Ii", CAPABILITY_VERSION, 0), bytes(24))


# ---------------------------------------------------------------- where there are no namespaces

AF_UNIX = 1
OWN_PROCESS = -1  # the number of the process that installs the filter
# Calls that are refused, by the numbers of the two architectures: (x86_64, aarch64, which argument has to be what; None: whatever is asked).
CALLS: tuple[tuple[int, int, tuple[int, int] | None], ...] = (
    (62, 129, (0, OWN_PROCESS)),  # kill
    (200, 130, (0, OWN_PROCESS)),  # tkill
    (234, 131, (0, OWN_PROCESS)),  # tgkill
    (129, 138, (0, OWN_PROCESS)),  # rt_sigqueueinfo
    (297, 240, (0, OWN_PROCESS)),  # rt_tgsigqueueinfo
    (302, 261, (0, 0)),  # prlimit64
    (141, 140, (1, 0)),  # setpriority
    (41, 198, (0, AF_UNIX)),  # socket
    (53, 199, (0, AF_UNIX)),  # socketpair
    (101, 117, None),  # ptrace
    (310, 270, None),  # process_vm_readv
    (311, 271, None),  # process_vm_writev
    (424, 424, None),  # pidfd_send_signal
    (434, 434, None),  # pidfd_open
    (438, 438, None),  # pidfd_getfd
    (425, 425, None),  # io_uring_setup, which can make sockets
    (272, 97, None),  # unshare
    (308, 268, None),  # setns
)
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
COMPATIBLE = 0x40000000  # from this number on calls are those of another convention of x86_64
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # of a program in BPF
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the latter as if there were no permission
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # where they are in what the program reads


def filtered() -> bool:
    """From now on the system refuses this process, and all that it starts, what would reach another process or the network; False if it cannot."""
    if os.uname().machine not in ARCHITECTURES:
        return False
    program = b"".join(struct.pack("HBBI", *step) for step in _program(*ARCHITECTURES[os.uname().machine]))
    memory = ctypes.create_string_buffer(program)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    listed = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(memory))
    into_a_domain()
    return bool(ctypes.CDLL(None).prctl(PR_SET_SECCOMP, 2, listed, 0, 0) == 0)


def _program(architecture: int, column: int) -> list[tuple[int, int, int, int]]:
    """Steps (what, how many to skip if true, if not, value): each call is compared with those that are refused."""
    steps = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, REFUSE), (LOAD, 0, 0, NUMBER)]
    if not column:
        steps += [(AT_LEAST, 0, 1, COMPATIBLE), (RETURN, 0, 0, REFUSE)]
    for *numbers, unless in CALLS:
        if unless is None:
            steps += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, REFUSE)]
            continue
        argument, value = unless
        value = os.getpid() if value == OWN_PROCESS else value
        asked = [(LOAD, 0, 0, ARGUMENTS + 8 * argument), (EQUAL, 1, 0, value), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
        steps += [(EQUAL, 0, len(asked), numbers[column]), *asked]
    return [*steps, (RETURN, 0, 0, ALLOW)]


def able_to_filter() -> bool:
    """Whether the system has such a filter; tried in a process of its own."""
    pid = os.fork()
    if not pid:
        os._exit(0 if filtered() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
