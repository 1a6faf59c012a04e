"""Heatmaps: the matrices of a picture as SVG that stands in a page, light or dark. Needs matplotlib (extra ``report``).

Places are given in inches; letting matplotlib find them takes most of a second a picture.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from ..cases.coordinates import Array

INK = "#123456"  # stands for the colour of the text around; no other part of a picture has it
DARK = "#222222"  # the colour of the text on white
WRONG = "#e5143c"
WRITTEN = 8  # a matrix of at most so many rows and columns has its numbers written in
CELL, LEAST, MOST = 0.36, 1.2, 4.0  # inches: a cell, and the sides of a map
LEFT, TOP, BOTTOM, GAP, BAR = 0.55, 0.3, 0.5, 0.3, 0.1
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "attncheck",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "text.color": INK,
}
_NUMBERS = itertools.count(1)
_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
Names = Sequence[Any]


def heatmaps(picture: Mapping[str, Any]) -> str:
    """``compared`` as an ``svg`` element in the colours of the page around it."""
    return svg(compared(picture, INK), picture["says"])


def compared(picture: Mapping[str, Any], ink: str) -> Figure:
    """What was expected, what came out, and how far apart they are in units of the bound: a row of maps for each matrix.

    ``picture`` is what ``as_json.picture_json`` makes. Wrong elements are outlined.
    """
    panels = [{name: _matrix(panel, name) for name in ("expected", "actual", "off", "allowed", "wrong")} for panel in picture["panels"]]
    high, wide = (_side(max(m["actual"].shape[axis] for m in panels)) for axis in (0, 1))
    across, down = LEFT + 3 * (wide + GAP) + 2 * (BAR + 0.55), TOP + high + BOTTOM
    with matplotlib.rc_context(STYLE | {"text.color": ink}):
        figure = Figure(figsize=(across, len(panels) * down), facecolor="none" if ink == INK else "white")
        norm, colours = _scale([m[name] for m in panels for name in ("expected", "actual")])
        for at, (panel, about) in enumerate(zip(panels, picture["panels"], strict=True)):
            top = at * down + TOP
            ratio, share_norm, share_colours, title = _share(panel)
            places = (LEFT, LEFT + wide + GAP, LEFT + 2 * (wide + GAP) + BAR + 0.55)
            shown = (("expected", panel["expected"]), ("actual", panel["actual"]), (title, ratio))
            for left, (name, matrix) in zip(places, shown, strict=True):
                scale = (share_norm, share_colours) if name == title else (norm, colours)
                axis = _map(figure, (left, top, wide, high), matrix, *scale)
                _outline(axis, panel["wrong"].astype(bool))
                _names(axis, about["rows"], about["columns"], picture["row"] if name == "expected" else "", picture["column"])
                _above(axis, " · ".join(filter(None, (about["where"], name))))
            _bar(figure, (places[1] + wide + 0.1, top, high), norm, colours)
            _bar(figure, (places[2] + wide + 0.1, top, high), share_norm, share_colours)
    return figure


def heatmap(panels: Sequence[tuple[str, Array]], rows: Names, columns: Names, title: str, axes: tuple[str, str], ink: str = DARK) -> Figure:
    """One map for each (name, matrix), with these names on both axes; a figure that somebody writes."""
    count, (rows_there, columns_there) = len(panels), np.shape(panels[0][1])
    high, wide = _side(rows_there), _side(columns_there)
    left, below = (max([0, *(len(str(name)) for name in names if isinstance(name, str))]) * 0.07 for names in (rows, columns))
    cell = (LEFT + left + wide + GAP, TOP + high + BOTTOM + below)
    across = min(count, 4)
    with matplotlib.rc_context(STYLE | {"text.color": ink}):
        figure = Figure(figsize=(across * cell[0] + 0.7, -(-count // across) * cell[1] + 0.3), facecolor="none" if ink == INK else "white")
        figure.text(0.5, 1, f"\n{title}", ha="center", va="top", fontsize=9)
        norm, colours = _scale([matrix for _, matrix in panels])
        for at, (name, matrix) in enumerate(panels):
            x, y = at % across * cell[0] + LEFT + left, at // across * cell[1] + TOP + 0.3
            axis = _map(figure, (x, y, wide, high), matrix, norm, colours)
            _names(axis, rows, columns, *axes)
            _above(axis, name)
        _bar(figure, (across * cell[0], TOP + 0.3, high), norm, colours)
    return figure


def curves(lines: Sequence[tuple[str, Array]], title: str, axes: tuple[str, str]) -> Figure:
    """Curves (name, (2, points)) with both axes in powers of two."""
    with matplotlib.rc_context(STYLE | {"text.color": DARK}):
        figure = Figure(figsize=(5, 3.5), facecolor="white", layout="constrained")
        axis = figure.add_subplot()
        for (name, (x, y)), dash in zip(lines, ("-", "--", ":", "-."), strict=False):
            axis.plot(x, y, dash, label=name, marker="o", markersize=3)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set(title=title, xlabel=axes[1], ylabel=axes[0])
        axis.legend(frameon=False)
    return figure


def save(figure: Figure, path: str) -> None:
    """A file in the format of its name."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.endswith(".svg") else None)


def svg(figure: Figure, says: str) -> str:
    """A figure as an ``svg`` element: no metadata, ids of its own, text in the colour of the page, a name for a screen reader."""
    file = io.StringIO()
    with matplotlib.rc_context(STYLE):
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(file.getvalue())
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for definitions in root.iter(f"{{{_SVG}}}defs"):
        for style in definitions.findall(f"{{{_SVG}}}style"):
            definitions.remove(style)  # it would be one of the whole page
    _renamed(root, f"figure-{next(_NUMBERS)}-")
    root.set("role", "img")
    root.set("aria-label", says)
    root.set("style", f"max-width: {root.get('width')}")
    for size in ("width", "height"):
        root.attrib.pop(size)
    return ElementTree.tostring(root, encoding="unicode")


def _renamed(root: ElementTree.Element, prefix: str) -> None:
    """The ids that are referred to get names that no other picture of the page has, the others go; colours follow the page's."""
    meant = set(re.findall(r"url\(#([^)]+)\)", " ".join(value for e in root.iter() for value in e.attrib.values())))
    meant |= {e.attrib[_LINK][1:] for e in root.iter() if e.get(_LINK, "").startswith("#")}
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            if name == "id" and value not in meant:
                del element.attrib[name]
            elif name == "id":
                element.set(name, prefix + value)
            elif name == _LINK and value.startswith("#"):
                element.set(name, f"#{prefix}{value[1:]}")
            else:
                element.set(name, value.replace("url(#", f"url(#{prefix}").replace(INK, "currentColor"))


def _matrix(panel: Mapping[str, Any], name: str) -> Array:
    return np.array([[float(x) for x in row] for row in panel[name]])


def _side(cells: int) -> float:
    return min(max(CELL * cells, LEAST), MOST)


def _scale(matrices: Sequence[Array]) -> tuple[Any, str]:
    """From 0 on in one hue, or about 0 in two."""
    numbers = np.concatenate([m[np.isfinite(m)] for m in matrices])
    least, most = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
    if least < 0:
        largest = max(-least, most)
        return Normalize(-largest, largest), "PuOr_r"
    return Normalize(0, most or 1.0), "viridis"


def _share(panel: Mapping[str, Array]) -> tuple[Array, Any, str, str]:
    """|actual − expected|, its scale and its title: in units of the bound where there is one, else as it is."""
    if (np.isfinite(panel["allowed"]) & (panel["allowed"] > 0)).any():
        with np.errstate(all="ignore"):
            share = np.where(np.isinf(panel["allowed"]), np.nan, panel["off"] / panel["allowed"])
        return np.where(share < 0.01, 0.01, share), LogNorm(0.01, 100, clip=True), "RdBu_r", "|difference| / bound"
    finite = panel["off"][np.isfinite(panel["off"])]
    return panel["off"], Normalize(0, float(finite.max(initial=0.0)) or 1.0), "Reds", "|difference|, 0 allowed"


# ------------------------------------------------------------ places, in inches from the left and the top


def _axes(figure: Figure, place: tuple[float, float, float, float]) -> Any:
    width, height = figure.get_size_inches()
    left, top, wide, high = place
    axis = figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))
    axis.set_axis_off()
    return axis


def _map(figure: Figure, place: tuple[float, float, float, float], matrix: Array, norm: Any, colours: str) -> Any:
    """One matrix in colours; what is no finite number is grey."""
    colour = colormaps[colours].with_extremes(bad="#808080")
    axis = _axes(figure, place)
    axis.imshow(np.ma.masked_invalid(matrix), norm=norm, cmap=colour, interpolation="none", aspect="auto")
    if max(matrix.shape) <= WRITTEN:
        for (i, j), x in np.ndenumerate(matrix):
            red, green, blue, _ = colour(norm(x)) if np.isfinite(x) else (0.5,) * 4
            light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45
            above = norm.clip and x > norm.vmax
            said = f">{norm.vmax:g}" if above else f"{x:.2g}".replace("e-0", "e-").replace("e+0", "e")
            axis.text(j, i, said, ha="center", va="center", fontsize=6.5, color="#000000" if light else "#ffffff")
    return axis


def _bar(figure: Figure, place: tuple[float, float, float], norm: Any, colours: str) -> None:
    """The scale beside a map: its ends and its middle."""
    axis = _axes(figure, (*place[:2], BAR, place[2]))
    axis.imshow(np.linspace(1, 0, 64)[:, None], cmap=colours, aspect="auto", extent=(0, 1, 0, 1))
    for at in (0.0, 0.5, 1.0):
        axis.text(1.5, at, f"{float(norm.inverse(at)):.3g}", va="center", fontsize=7)


def _outline(axis: Any, wrong: Array) -> None:
    """A line around what is wrong, between wrong and right elements."""
    padded = np.pad(wrong, 1)
    lines = [(j - 0.5, i - 0.5, j + 0.5, i - 0.5) for i, j in np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1])]
    lines += [(j - 0.5, i - 0.5, j - 0.5, i + 0.5) for i, j in np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1])]
    broken = np.array([(a, b, c, d, np.nan, np.nan) for a, b, c, d in lines]).reshape(-1, 2)  # NaN lifts the pen
    for colour, width in (("#ffffff", 3.2), (WRONG, 1.8)) if lines else ():
        axis.plot(
            broken[:, 0],
            broken[:, 1],
            color=colour,
            linewidth=width,
            solid_capstyle="projecting",
            clip_on=False,
            scalex=False,
            scaley=False,
        )


def _above(axis: Any, title: str) -> None:
    _beside(axis, title, (0, 1), (0, 5))


def _beside(axis: Any, text: str, at: tuple[float, float], points: tuple[float, float], **how: Any) -> None:
    """A text some points away from a place, which is given as a share of the map."""
    if text:
        axis.annotate(text, at, points, xycoords="axes fraction", textcoords="offset points", fontsize=8, **how)


def _names(axis: Any, rows: Names, columns: Names, row: str, column: str) -> None:
    """What stands beside the rows and below the columns: each name if it is a word, else some numbers."""
    worded = [any(isinstance(name, str) for name in names) for names in (rows, columns)]
    down, across = (1 if words else -(-len(names) // 8) for words, names in zip(worded, (rows, columns), strict=True))
    for at in range(0, len(rows), down):
        share = 1 - (at + 0.5) / len(rows)
        _beside(axis, str(rows[at]), (0, share), (-4, 0), ha="right", va="center")
    turned = {"rotation": 60, "ha": "right", "va": "top", "rotation_mode": "anchor"} if worded[1] else {"ha": "center", "va": "top"}
    for at in range(0, len(columns), across):
        _beside(axis, str(columns[at]), ((at + 0.5) / len(columns), 0), (2, -4) if worded[1] else (0, -4), **turned)
    if not worded[0]:
        _beside(axis, row, (0, 0.5), (-10 - 5 * len(str(len(rows))), 0), rotation=90, ha="right", va="center")
    if not worded[1]:
        _beside(axis, column, (0.5, 0), (0, -16), ha="center", va="top")
