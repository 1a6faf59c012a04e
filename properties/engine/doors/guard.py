"""A run in a process of its own: one that a target kills, or ends, has no verdict, and says so."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from ..contained.limits import PR_SET_DUMPABLE, prctl
from ..contained.watch import wait_for_me
from ..core.crash import CAN_FORK, ended, forked
from ..search.interrupt import ENDING

DEADLY = tuple(-s for s in (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGALRM))
ANSWERED = b"."


def killed(did: str, isolated: bool, who: str = "the target") -> int:
    """Say what somebody did to this process. The exit status if nothing more can be done, 0 if a second run can isolate the case."""
    again = "" if isolated or not CAN_FORK else ": starting again, every case in a process of its own first"
    print(f"attncheck: {who} {did}{again}", file=sys.stderr, flush=True)
    return 0 if again else 2


def guarded(arguments: list[str], main: Callable[[list[str]], int], again: bool = True) -> int:
    """The exit status of a run in a fork; once more, with cases isolated, if the target kills it, or ends it before it has a verdict.

    ``again``: whether such a run can be made with cases isolated. The fork says its status through a pipe when it has come to its end: a status
    that was not said is no verdict. It also says when the first calls of the target have come back: one that hangs in them would hang in them again.
    """
    if "--isolate" in arguments:
        os.environ["OMP_NUM_THREADS"] = "1"  # a fork of a process whose threads have worked may hang in the next product
    reading, writing = os.pipe()

    def run() -> int:
        wait_for_me(lambda: os.write(writing, ANSWERED))
        try:
            status = main(arguments)
        except SystemExit as end:  # of the parser of arguments
            status = end.code if isinstance(end.code, int) else 2
        except KeyboardInterrupt:  # before there was a run, or after it
            print("attncheck: interrupted", file=sys.stderr)
            status = 128 + signal.SIGINT
        os.write(writing, b"%d" % status)
        return status

    prctl(PR_SET_DUMPABLE, 0)  # nor may a target look into this process
    status = forked(run, forwards=ENDING)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    if status not in DEADLY and (status < 0 or said.removeprefix(ANSWERED) == b"%d" % status):
        return status
    if status == -signal.SIGALRM and not said:
        return killed("gave no answer to one of its first calls in time: it hangs, or takes longer (a longer --time waits longer)", True)
    isolated = "--isolate" in arguments or not again
    who = "the reference" if arguments[0:1] == ["judge"] else "the target"  # candidates are never in this process
    return killed(ended(status), isolated, who) or guarded([*arguments, "--isolate"], main)
