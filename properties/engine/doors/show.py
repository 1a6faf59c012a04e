"""``attncheck show TARGET``: the attention weights of a target as a picture, in a file or in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ... import catalogue  # makes the contracts known  # noqa: F401
from ...attention.case import Case
from ...attention.pictures import weights
from ...attention.trial import Trial
from ..cases.coordinates import Array
from ..cases.masks import MASKS
from ..core.picture import Picture, pictured
from ..core.supports import Supports
from ..core.target import CannotRun, Raised, Target
from ..core.trial import Refuted
from ..report.as_json import picture_json
from ..search.find_target import Builtins, containing, find_targets, users
from . import scenes
from .files import page_maker
from .scenes import Scene, Wanted

FORMATS = (".png", ".svg", ".pdf")
WIDE = 12  # columns of which each number is printed; more are shades
SHADES = " ░▒▓█"


def main(arguments: Sequence[str]) -> int:
    """Draw what is wanted. Raises ValueError with one sentence if there is nothing to draw, CannotRun for what cannot be called."""
    options = parse(arguments)
    if options.output and Path(options.output).suffix not in FORMATS:
        raise ValueError(f"a picture is written as {', '.join(FORMATS)}, not {options.output!r}")
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),
            np.errstate(all="ignore"),
            containing(users()),
        ):  # what a target prints is no part of the picture
            drawn = on_case(options) if options.case else scene(options)
    except (CannotRun, Raised, Refuted) as error:
        raise ValueError(str(error)) from None
    if options.output:
        write(drawn, options.output)
        print(options.output)
    else:
        print(in_words(drawn))
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="attncheck show",
        description="Draw the attention weights of a target, read through its values; without -o in the terminal.",
        epilog=f"in the place of a target: {', '.join(scenes.WORDS)}",
    )
    parser.add_argument("target", help="as anywhere; positions are drawn as tables")
    parser.add_argument("--text", help="words on both axes, a random vector for each")
    parser.add_argument("--tokens", type=int, default=8, metavar="N", help="without a text (default 8)")
    parser.add_argument("--heads", type=int, default=2, metavar="N", help="a panel each (default 2)")
    parser.add_argument("--dim", type=int, default=16, metavar="N", help="features of a head, or of a table (default 16)")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--mask", choices=tuple(MASKS), metavar="FAMILY", help=", ".join(MASKS))
    parser.add_argument("--window", metavar="LEFT,RIGHT", help="-1: no limit")
    parser.add_argument("--case", metavar="CASE", help="as a replay line has it: expected beside actual weights")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--supports", metavar="FILE.toml", help="what the target supports and which conventions it follows")
    parser.add_argument("-o", "--output", metavar="FILE", help="a file .png, .svg or .pdf")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options that are given."""
    options = parser().parse_args(arguments)
    for name in ("tokens", "heads", "dim"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} is a whole number from 1 on, not {getattr(options, name)}")
    return options


def found(options: argparse.Namespace) -> Target:
    """The one target, as it is spoken with. Raises CannotRun."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    supports = Supports.in_file(options.supports) if options.supports else None
    targets = find_targets(options.target, Builtins(), supports)
    if len(targets) != 1:
        raise CannotRun(f"a picture is of one target, {options.target} names {len(targets)}")
    return targets[0]


def scene(options: argparse.Namespace) -> Scene:
    """What there is to see of a word, or of a target."""
    if options.text is not None and not options.text.split():
        raise ValueError("there is no word in the text")
    wanted = Wanted(
        options.text, options.tokens, options.heads, options.dim, options.causal, options.mask, sides(options.window), options.seed
    )
    return scenes.WORDS[options.target](wanted) if options.target in scenes.WORDS else scenes.of_target(found(options), wanted)


def sides(text: str | None) -> tuple[int | None, int | None] | None:
    """(left, right) of a window; −1 is no limit."""
    if text is None:
        return None
    try:
        left, right = (None if int(side) == -1 else int(side) for side in text.split(","))
    except ValueError:
        raise ValueError(f"a window is LEFT,RIGHT such as 2,0, not {text!r}") from None
    return left, right


def on_case(options: argparse.Namespace) -> Picture:
    """Expected and actual weights of a case that a replay line has, or somebody wrote."""
    target = found(options)
    view = target.kind.view(target, "attention")
    case = Case.parse(options.case)
    if view.contract != "attention":
        raise CannotRun(f"the weights of {target.name} cannot be read through its values")
    if case.dtype not in view.dtypes:
        raise CannotRun(f"{target.name} takes {', '.join(view.dtypes)}, not {case.dtype}")
    made = pictured(f"{target.name}: attention weights", f"on {case!r}", weights(Trial(view, case)), "query", "key")
    if made is None:
        raise ValueError(f"{case!r} has one weight or none: there is nothing to draw")
    return made


def write(drawn: Scene | Picture, path: str) -> None:
    """A file in the format of its name. Raises CannotRun where the extra ``report`` is not installed."""
    page_maker()
    from ..report import draw

    if isinstance(drawn, Picture):
        figure = draw.compared(picture_json(drawn), draw.DARK)
    elif drawn.curves:
        figure = draw.curves(drawn.panels, drawn.title, drawn.axes)
    else:
        figure = draw.heatmap(drawn.panels, drawn.rows, drawn.columns, drawn.title, drawn.axes)
    draw.save(figure, path)


# ---------------------------------------------------------------- in the terminal


def in_words(drawn: Scene | Picture) -> str:
    """Numbers where they are few, else shades; what is wrong is marked."""
    if isinstance(drawn, Picture):
        parts = [f"{drawn.title}, {drawn.says}" + f" ({drawn.left_out})" * bool(drawn.left_out)]
        for panel in drawn.panels:
            values, names = panel.values, (list(panel.rows), list(panel.columns))
            parts.append(matrix_text(f"{panel.where} expected".strip(), values.expected, *names))
            parts.append(matrix_text(f"{panel.where} actual, ✗ is wrong".strip(), values.actual, *names, values.wrong))
        return "\n\n".join(parts)
    if drawn.curves:
        heads = f"{drawn.axes[1]:>12}" + "".join(f"{int(x):>9}" for x in drawn.panels[0][1][0])
        return "\n".join([drawn.title, heads, *(f"{name:>12}" + "".join(f"{y:>9.3g}" for y in curve[1]) for name, curve in drawn.panels)])
    return "\n\n".join([drawn.title, *(matrix_text(name, matrix, drawn.rows, drawn.columns) for name, matrix in drawn.panels)])


def matrix_text(name: str, matrix: Array, rows: Sequence[object], columns: Sequence[object], wrong: Array | None = None) -> str:
    """A matrix with names on both axes."""
    left = max(len(str(row)) for row in rows)
    if len(columns) > WIDE:
        largest = float(np.nanmax(np.abs(matrix))) or 1.0
        share = np.nan_to_num(np.abs(matrix) / largest)
        body = ["".join(SHADES[int(np.ceil(x * 4 - 1e-9))] * 2 for x in row) for row in share]
        heads = [f"{name}, the darker the larger: █ is {largest:.3g}"]
    else:
        marks = np.zeros(matrix.shape, bool) if wrong is None else wrong
        cells = [[f"{x:.2f}" + "✗" * bool(w) for x, w in zip(row, mark, strict=True)] for row, mark in zip(matrix, marks, strict=True)]
        wide = max([7, *(len(cell) + 1 for row in cells for cell in row)])
        body = ["".join(f"{cell:>{wide}}" for cell in row) for row in cells]
        heads = [name, " " * left + "".join(f"{str(column)[: wide - 1]:>{wide}}" for column in columns)]
    return "\n".join([*filter(None, heads), *(f"{row!s:>{left}}{line}" for row, line in zip(rows, body, strict=True))])
