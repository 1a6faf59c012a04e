"""The options of ``attncheck TARGET``."""

from __future__ import annotations

import argparse
import re

from ..cases.dtypes import DTYPES
from ..core.target import CannotRun
from ..search.find_target import ALWAYS, NEVER, users
from . import gates
from .arguments import Parser, count, duration, given, integer, processes

DEVICE = "cpu or cuda (default: cpu, and cuda, where there is one, for what cannot be called on the CPU)"


def device_of(options: argparse.Namespace) -> str:
    """The device that is asked for: by ``--device``, or by the case of ``--case``; the CPU if by neither."""
    told = re.search(r"\bdevice='([\w:]+)'", options.case or "")
    return str(options.device or (told[1] if told else "cpu"))


def which_contained(options: argparse.Namespace) -> str:
    """Which targets are in a process of their own: ``containing``. Raises CannotRun where it is asked for and cannot be done."""
    able = users(device_of(options))
    if options.contained and able == NEVER:
        raise CannotRun("--contained shares memory with the target's process, as Linux alone can, for the devices cpu and cuda")
    return ALWAYS if options.contained else NEVER if options.in_process else able


def parser() -> argparse.ArgumentParser:
    """The options. ``list`` is a word in the place of a target; those of ``WORDS`` have a parser of their own."""
    parser = Parser(
        prog="attncheck",
        description="Find the smallest case on which an attention is wrong, or say what was verified.",
        epilog="exit status: 0 nothing found, 1 refuted, 2 cannot be run, or too little was tried, 130 after Ctrl-C, "
        "141 when what reads the output has gone",
    )
    parser.add_argument(
        "target",
        nargs="?",
        help="package.module:attribute, file.py:attribute, a file.py with one attention, or the name or glob of a "
        "built-in; 'list' prints the properties, 'explain' why a case is drawn, 'show' draws attention weights, "
        "'replay' tries every finding again, 'resume' goes on with a run that was ended, 'judge' judges many, "
        "'init' and 'new' write skeletons, 'completion' what a shell completes; "
        "nothing: all built-in implementations",
    )
    parser.add_argument("--property", action="append", default=[], metavar="NAME", help="a property, a glob, or a whole theme (repeatable)")
    parser.add_argument("--case", metavar="CASE", type=given, help="try only this case, as printed by a replay line")
    parser.add_argument(
        "--cases", type=count, metavar="N", help="cases per property (default 150; 40 with no target, or where shapes are costly)"
    )
    parser.add_argument(
        "--time",
        type=duration,
        metavar="T",
        help="search for this long instead, round after round: 90s, 30m, 2h; of what is left each property gets an equal part at most",
    )
    parser.add_argument(
        "--like",
        action="append",
        default=[],
        type=given,
        metavar="REFERENCE",
        help="whether the target answers as this one does, within what rounding explains: the smallest case on which they part"
        " (repeatable; @compile, @eager, @sdpa: as itself, seen so)",
    )
    parser.add_argument("--device", type=given, help=DEVICE)
    parser.add_argument("--dtype", action="append", default=[], choices=DTYPES, help="only this dtype (repeatable)")
    parser.add_argument("--supports", type=given, metavar="FILE.toml", help="what the target supports and which conventions it follows")
    parser.add_argument(
        "--handshake",
        action="store_true",
        help="only what the target speaks, refuses and does otherwise than documented; nothing is searched",
    )
    parser.add_argument(
        "--write-supports",
        type=given,
        metavar="FILE.toml",
        help="write what was learned, as keys of supports: given to --supports, it is the claim from then on",
    )
    parser.add_argument("--deviations", type=given, metavar="FILE.toml", help="known deviations of the target")
    parser.add_argument("--json", type=given, metavar="FILE", help="write the report as JSON, too ('-': standard output)")
    parser.add_argument(
        "--html", type=given, metavar="FILE", help="write the report as one page, too, with pictures; needs the extra report"
    )
    gates.add_options(parser)
    parser.add_argument(
        "--record",
        type=given,
        metavar="FILE",
        help="where everything is written down as soon as it is found, for 'resume' (default: a new file in .hypothesis/attncheck-runs)",
    )
    parser.add_argument(
        "--round",
        type=integer,
        metavar="N",
        help="another round than 0 draws other cases; one that is given, the same whatever was found before",
    )
    parser.add_argument("--first", action="store_true", help="stop at the first finding, shrunk")
    parser.add_argument(
        "-n", "--workers", type=processes, metavar="N", help="processes (default: all cores, once there is much to do; on a GPU one)"
    )
    parser.add_argument(
        "--isolate",
        action="store_true",
        help="try every case in a process of its own first, as is done by itself where a target kills the process",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--in-process",
        action="store_true",
        help="the target in the checker's own process, as for a debugger; the default where arrays cannot be shared "
        "(JAX on a GPU); a user's target is in a process of its own otherwise, and whatever it does, it is judged from outside",
    )
    where.add_argument("--contained", action="store_true", help="a built-in, too, in a process of its own")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refusals, what is wrong at edges alone, and conventions that are not declared are findings, too; "
        "what is on record for a built-in is not taken as known",
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="that of the installed attncheck; with -v CPU, device, instructions that are used, versions and threads, too",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="every finding in full")
    parser.add_argument("-q", "--quiet", action="store_true", help="neither progress nor known deviations")
    return parser
