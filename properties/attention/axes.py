"""The axes of arrays, in every order that is in use: how queries, keys and values are given, and how an answer is read.

A form is spelled in letters: b batch, h heads, k heads of keys and g queries' heads to each of them (h = k · g), l length, d features, 1 the
one query of a call, and t the three where queries, keys and values are one array. Axes in brackets are one axis.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.core.pace import OtherForm
from ..engine.frameworks import Framework

CANONICAL = {"q": "bkgld", "k": "bkld"}


@dataclass(frozen=True)
class Axes:
    """One way to give three arrays, and the forms in which the answer may come back."""

    words: str
    queries: str
    keys: str = ""  # where keys and values have other axes
    values: str = ""  # where values have other axes than keys
    each: str = ""  # a call for each index along these; l: that of the queries alone
    packed: str = ""  # the form of the one array that has queries, keys and values
    listed: bool = False  # the first axis is a list
    answers: tuple[str, ...] = ("",)  # of ANSWERS

    @property
    def side_by_side(self) -> bool:
        """Whether heads lie side by side in features."""
        return self.queries.endswith("(hd)")

    @property
    def folded(self) -> bool:
        """Whether there is no axis of the batch, or none of heads: a mask is cut, or folded, with them."""
        return bool(set(self.each) - {"l"}) or "(bh)" in self.queries

    @property
    def decoding(self) -> bool:
        """Whether a call has one query, as each step of decoding."""
        return "l" in self.each


# From the simplest to the strangest.
LAYOUTS = {
    "bhld": Axes("(batch, heads, length, dim)", "bhld", answers=("", "blhd", "bl(hd)")),
    "blhd": Axes("(batch, length, heads, dim)", "blhd", answers=("", "bl(hd)")),
    "bld": Axes("(batch · heads, length, dim)", "(bh)ld"),
    "ld": Axes("(length, dim), a call for each head", "ld", each="bkg"),
    "lbhd": Axes("(length, batch, heads, dim)", "lbhd", answers=("", "lb(hd)")),
    "lhd": Axes("(length, heads, dim), a call for each sequence", "lhd", each="b", answers=("", "l(hd)")),
    "bdl": Axes("(batch · heads, dim, length)", "(bh)dl"),
    "bhdl": Axes("(batch, heads, dim, length)", "bhdl"),
    "bl(hd)": Axes("(batch, length, heads · dim)", "bl(hd)"),
    "l(hd)": Axes("(length, heads · dim), a call for each sequence", "l(hd)", each="b"),
    "kv": Axes("(batch, heads, length, dim), keys and values without heads; a call for each of theirs", "bgld", "bld", each="k"),
    "lkgd": Axes(
        "(length, key heads, group, dim), keys and values (length, heads, dim); a call for each sequence",
        "lkgd",
        "lkd",
        each="b",
        answers=("", "l(hd)"),
    ),
    "bh1d": Axes("(batch, heads, 1, dim), keys and values (batch, heads, length, dim); a call for each query", "bh1d", "bhld", each="l"),
    "b1hd": Axes("(batch, 1, heads, dim), keys and values (batch, length, heads, dim); a call for each query", "b1hd", "blhd", each="l"),
    "bhd": Axes("(batch, heads, dim), keys and values (batch, heads, length, dim); a call for each query", "bhd", "bhld", each="l"),
    "bhd, blhd": Axes("(batch, heads, dim), keys and values (batch, length, heads, dim); a call for each query", "bhd", "blhd", each="l"),
    "hd": Axes("(heads, dim), keys and values (length, heads, dim); a call for each query of each sequence", "hd", "lhd", each="bl"),
    "bhld, bhdl": Axes(
        "(batch, heads, length, dim), keys (batch, heads, dim, length)", "bhld", "bhdl", values="bhld", answers=("", "blhd", "bl(hd)")
    ),
    "bld, bdl": Axes("(batch · heads, length, dim), keys (batch · heads, dim, length)", "(bh)ld", "(bh)dl", values="(bh)ld"),
    "[bld]": Axes("lists of heads, each (batch, length, dim)", "hbld", listed=True, answers=("", "bl(hd)")),
    "[ld]": Axes("lists of heads, each (length, dim); a call for each sequence", "hld", each="b", listed=True, answers=("", "l(hd)")),
}
PACKED = {
    "bl3hd": Axes("(batch, length, 3, heads, dim) in one array", "blhd", packed="blthd", answers=("", "bl(hd)", "bhld")),
    "3bhld": Axes("(3, batch, heads, length, dim) in one array", "bhld", packed="tbhld", answers=("", "blhd", "bl(hd)")),
    "bhl3d": Axes("(batch, heads, length, 3, dim) in one array", "bhld", packed="bhltd", answers=("", "blhd", "bl(hd)")),
    "bl(3hd)": Axes("(batch, length, 3 · heads · dim) in one array", "bl(hd)", packed="bl(thd)"),
    "bl(h3d)": Axes("(batch, length, heads · 3 · dim) in one array", "bl(hd)", packed="bl(htd)"),
    "b(3hd)l": Axes("(batch, 3 · heads · dim, length) in one array", "b(hd)l", packed="b(thd)l"),
    "b(h3d)l": Axes("(batch, heads · 3 · dim, length) in one array", "b(hd)l", packed="b(htd)l"),
}
ANSWERS = {
    "blhd": "(batch, length, heads, dim)",
    "bhld": "(batch, heads, length, dim)",
    "bl(hd)": "(batch, length, heads · dim)",
    "lb(hd)": "(length, batch, heads · dim)",
    "l(hd)": "(length, heads · dim)",
}
NATIVE = ("bhld", "blhd")  # what the contract itself calls with


def known(layout: str) -> Axes:
    """The axes of a layout."""
    return LAYOUTS.get(layout) or PACKED[layout]


def groups(letters: str, heads: str) -> list[str]:
    """The axes of a form, each as the letters that are one in it; ``heads`` are the letters of h."""
    found = re.findall(r"\(([a-z]+)\)|([a-z1])", letters)
    return [(folded or alone).replace("h", heads) for folded, alone in found]


def arrange(x: Any, have: str, wanted: Sequence[str], fw: Framework) -> Any:
    """An array whose axes are the letters ``have``, in a form."""
    sizes = {**dict(zip(have, x.shape, strict=True)), "1": 1}
    order = "".join(wanted).replace("1", "")
    if order != have:
        x = fw.permute(x, tuple(have.index(letter) for letter in order))
    return x if list(wanted) == list(order) else x.reshape(_shape(wanted, sizes))


def restore(y: Any, have: Sequence[str], wanted: str, sizes: dict[str, int], fw: Framework) -> Any:
    """An array in a form, with the letters ``wanted`` as axes. Raises OtherForm where its shape is not of that form."""
    shape = _shape(have, sizes)
    if tuple(y.shape) != shape:
        raise OtherForm(f"returned shape {tuple(y.shape)}, not {shape}")
    order = "".join(have).replace("1", "")
    if list(order) != list(have):
        y = y.reshape(tuple(sizes[letter] for letter in order))
    return y if order == wanted else fw.permute(y, tuple(order.index(letter) for letter in wanted))


def _shape(form: Sequence[str], sizes: dict[str, int]) -> tuple[int, ...]:
    shape = []
    for letters in form:
        size = 1
        for letter in letters:
            size *= sizes[letter]
        shape.append(size)
    return tuple(shape)


def calls(axes: Axes, q: Any, k: Any, v: Any, fw: Framework) -> Iterator[tuple[dict[str, int], list[Any]]]:
    """(index along the axes of which each index is a call, what that call is given), from (batch, heads, length, dim)."""
    if q.shape[0] != k.shape[0] or k.shape[:2] != v.shape[:2] or q.shape[1] % (k.shape[1] or 1):
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} fit no attention")  # which would not show in parts
    sizes = sizes_of(q, k)
    whole = {"q": q.reshape(tuple(sizes[letter] for letter in "bkgld")), "k": k, "v": v}
    for index in itertools.product(*(range(sizes[letter]) for letter in axes.each)):
        at = dict(zip(axes.each, index, strict=True))
        given = []
        for name, x in whole.items():
            have = CANONICAL["q" if name == "q" else "k"]
            for letter, i in at.items():
                if letter in have and (letter != "l" or name == "q"):
                    x, have = x[(slice(None),) * have.index(letter) + (i,)], have.replace(letter, "")
            letters = {"q": axes.queries, "k": axes.keys or axes.queries, "v": axes.values or axes.keys or axes.queries}[name]
            given.append(arrange(x, have, groups("bhld" if axes.packed else letters, "".join(c for c in "kg" if c in have)), fw))
        if axes.packed:
            given = [arrange(fw.stack(given), "tbhld", groups(axes.packed, "h"), fw)]
        yield at, [[x[i] for i in range(x.shape[0])] if axes.listed else x for x in given]


def unpacked(packed: Any, axes: Axes, q: Any, fw: Framework) -> Any:
    """(3, batch, heads, length, dim) of the one array that has queries, keys and values, of the shape of ``q`` each."""
    sizes = {"t": 3, **dict(zip("bhld", q.shape, strict=True))}
    return restore(packed, groups(axes.packed, "h"), "tbhld", sizes, fw)


def sizes_of(q: Any, k: Any) -> dict[str, int]:
    """The size of each letter, of queries."""
    batch, heads, length, dim = q.shape
    key_heads = k.shape[1]
    return {"1": 1, "b": batch, "k": key_heads, "g": heads // (key_heads or 1) if heads else 1, "l": length, "d": dim}


def answer_form(axes: Axes, answer: str) -> list[str]:
    """The form in which the answer of one call comes back."""
    return groups(answer or axes.queries, "".join(letter for letter in "kg" if letter not in axes.each))


def whole(answers: Sequence[Any], axes: Axes, answer: str, sizes: dict[str, int], fw: Framework) -> Any:
    """The answers of all calls as (batch, heads, length, dim). Raises TypeError where one has another shape."""
    left = "".join(letter for letter in CANONICAL["q"] if letter not in axes.each)
    read = [restore(y, answer_form(axes, answer), left, sizes, fw) for y in answers]
    if axes.each:
        stacked = fw.stack(read).reshape(tuple(sizes[letter] for letter in axes.each + left))
        order = axes.each + left
        one = stacked if order == CANONICAL["q"] else fw.permute(stacked, tuple(order.index(letter) for letter in CANONICAL["q"]))
    else:
        one = read[0]
    return one.reshape((sizes["b"], sizes["k"] * sizes["g"], sizes["l"], sizes["d"]))
