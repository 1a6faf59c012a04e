"""What a worker may write: temporary files and caches. All else in the file system it can read, as its user can, and not change.

A target could change the checker otherwise, its own file, or another candidate, and be believed the next time. In namespaces what is mounted is
made read-only (Linux 5.12, mount_setattr(2)); elsewhere it is a rule (Linux 5.13, landlock(7)), which cannot except what lies in such a place.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MS_BIND, MS_REC = 4096, 16384  # mount(2)
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, READ_ONLY, NO_DEVICES = 442, -100, 0x8000, 1, 4  # mount_setattr(2)
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
GPUS = ("nvidia*", "kfd", "dri")  # below /dev
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT, BENEATH, WRITE_FILE, TRUNCATE = 444, 445, 446, 1, 1 << 1, 1 << 14  # landlock(7)
CACHES = (".cache", ".triton", ".nv", ".cupy", ".keras", ".theano", ".numba_cache", ".config/matplotlib")  # in a user's home
NAMED = (
    "XDG_CACHE_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "NUMBA_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "HF_HOME",
)
OF_GPUS = (".triton", ".nv")  # which a first kernel makes in a user's home
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
PACKAGE = Path(__file__).parents[2]


def only_temporary_files(held: Sequence[str], hidden: Sequence[str] = (), device: str = "cpu") -> bool:
    """From now on nothing else can be written in this namespace of mounts, nor what is held; False where the system cannot do that.

    Nor can a folder be renamed in which something is held or hidden: another one could be put in its place.
    """
    places = _writable()
    for place in places:
        _bind(place)
    if not _set("/", READ_ONLY, 0, AT_RECURSIVE):
        return False
    for place in places:
        _set(place, 0, READ_ONLY, 0)
    _without_devices(() if device == "cpu" else [str(found) for name in GPUS for found in Path("/dev").glob(name)])
    never = (str(PACKAGE), str(PACKAGE.parent / "impls"), sys.prefix, sys.base_prefix, *sys.path)  # where the checker looks for modules
    kept = [one for one in {os.path.realpath(place) for place in (*never, *held)} if os.path.exists(one) and _lies_in(places, one)]
    above = {
        str(folder) for one in (*kept, *map(os.path.realpath, hidden)) for folder in Path(one).parents if _lies_in(places, str(folder))
    }
    for place in sorted(above, key=len):
        _bind(place)  # what is mounted in a folder moves with it; a folder on which something is mounted does not move
    for place in kept:
        if _bind(place):
            _set(place, READ_ONLY, 0, AT_RECURSIVE)
    return True


def of_the_system() -> list[bytes]:
    """What in /proc is the system's, which root could change there, and no process's own."""
    return [os.fsencode(place) for place in Path("/proc").iterdir() if not (place.name.isdecimal() or place.is_symlink())]


def _without_devices(but: Sequence[str]) -> None:
    """What root may open, such as disks, is opened by nobody here: of devices there are those that hold nothing, and some more."""
    _set("/", NO_DEVICES, 0, AT_RECURSIVE)
    for place in (*DEVICES, *but):
        if os.path.exists(place) and _bind(place):
            _set(place, 0, NO_DEVICES, 0)
    try:
        os.close(os.open(os.devnull, os.O_RDWR))
    except OSError:  # the system gives none of them back
        _set("/", 0, NO_DEVICES, AT_RECURSIVE)


def _lies_in(places: Sequence[str], one: str) -> bool:
    """Whether it lies in one of some places, and holds none of them."""
    return any(one.startswith(f"{place}/") for place in places) and not any(f"{place}/".startswith(f"{one}/") for place in places)


def _rights(version: int) -> int:
    """What a version of the rules knows of writing: files, folders, devices, links; to move between folders, and to cut, from 2 and 3 on."""
    return sum(1 << bit for bit in (1, *range(4, 13), *[13] * (version > 1), *[14] * (version > 2)))


def into_a_domain() -> None:
    """Where the system has them, this process enters a domain of its own: those outside of it, of the same user, cannot be looked into, nor
    can other files be written than temporary ones and caches."""
    call = ctypes.CDLL(None).syscall
    version = call(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    rights = _rights(version)
    rules = call(LANDLOCK_CREATE, struct.pack("Q", rights), ctypes.c_size_t(8), 0)
    own = (WRITE_FILE | TRUNCATE) & rights  # the names of threads, in /proc
    for place, allowed in (*((place, rights) for place in _writable()), ("/dev", WRITE_FILE), ("/proc", own)):
        with suppress(OSError):
            folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
            call(LANDLOCK_ADD, rules, BENEATH, struct.pack("=Qi", allowed, folder), 0)
            os.close(folder)
    call(LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def make_caches(device: str) -> None:
    """What a first kernel would make of caches in a user's home, which it cannot make there any more once nothing else is written."""
    for name in (".cache", *(OF_GPUS if device != "cpu" else ())):
        with suppress(OSError):
            Path.home().joinpath(name).mkdir(exist_ok=True)


def _writable() -> list[str]:
    home = os.path.realpath(Path.home())
    caches = [
        os.path.realpath(one)
        for one in (*(os.path.join(home, one) for one in CACHES), *(os.environ.get(name, "") for name in NAMED))
        if one
    ]
    found = [
        *TEMPORARY,
        os.path.realpath(tempfile.gettempdir()),
        *(one for one in caches if not f"{home}/".startswith(one.rstrip("/") + "/")),
    ]
    return [one for one in dict.fromkeys(found) if os.path.isdir(one)]


def _bind(place: str) -> bool:
    return bool(ctypes.CDLL(None).mount(os.fsencode(place), os.fsencode(place), None, MS_BIND | MS_REC, None) == 0)


def _set(place: str, wanted: int, unwanted: int, how: int) -> bool:
    attributes = struct.pack("QQQQ", wanted, unwanted, 0, 0)
    call = ctypes.CDLL(None).syscall
    return bool(call(MOUNT_SETATTR, AT_FDCWD, os.fsencode(place), how, attributes, ctypes.c_size_t(len(attributes))) == 0)
