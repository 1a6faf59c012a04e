"""Functions that are given the weights of their projections: tokens that hold queries, keys and values side by side, and weights that pick them.

Products with 0 and with powers of two are exact. So such a function is the attention of its operands, rounded as it rounds them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import NotTaken
from ..engine.frameworks import Framework

PARTS = {
    "q": ("q", "query", "queries"),
    "k": ("k", "key", "keys"),
    "v": ("v", "value", "values", "val"),
    "qkv": ("qkv", "attn", "in", "c_attn"),
    "kv": ("kv",),
    "o": ("o", "out", "output", "0", "c", "concat", ""),
}
WEIGHT = re.compile(r"weights?|kernel|matrix|mat|proj(ection)?|w")
BIAS = re.compile(r"bias(es)?|b|proj")
NAMED = {"c_attn": "qkv"}  # weights, though nothing in the name says so (GPT-2)
# The shapes of matrices; or a dictionary that holds one of these, and a bias, by these names.
FORMS = ("(in, out)", "(out, in)", "(heads, in, out)", "(in, heads, out)")
HELD_BY = {'{"w", "b"}': "(in, out)", '{"kernel", "bias"}': "(in, out)", '{"weight", "bias"}': "(out, in)"}
WIDEST = 3 * 512  # features of queries, keys and values together for which weights are made
WIDER = 4  # tokens are so many times as wide as queries where weights are square, so that 1/sqrt(d) is exactly half of what it was
# What is in each array of tokens, by their number.
HELD = {1: ("qkv",), 2: ("q", "kv"), 3: ("q", "k", "v")}


def part_of(name: str, mark: re.Pattern[str] = WEIGHT) -> str:
    """What a name says that a matrix projects to, of PARTS; empty if it is not called a weight."""
    if mark is WEIGHT and name in NAMED:
        return NAMED[name]
    lower = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_")
    for part, names in PARTS.items():
        for called in names:
            rest = re.sub(rf"(^|_|(?<=^w)|(?<=^b)){called}(_|$|(?=w$)|(?=b$))", " ", lower, count=1) if called else lower
            words = [word for word in re.split(r"[ _]+", rest) if word]
            if (rest != lower or not called) and words and all(mark.fullmatch(word) for word in words):
                return part
    return ""


@dataclass(frozen=True)
class Weights:
    """How a function is given tokens and weights."""

    tokens: int  # the number of arrays of tokens, of HELD
    matrices: Mapping[str, str]  # their parameter → what it projects to, of PARTS
    biases: Mapping[str, str]
    form: str = "(in, out)"  # of FORMS, or of HELD_BY
    square: bool = False  # as many features out as in

    @property
    def shape(self) -> str:
        """That of the matrices themselves."""
        return HELD_BY.get(self.form, self.form)

    @property
    def by_head(self) -> bool:
        """Whether heads are an axis of the weights."""
        return "heads" in self.form

    @property
    def mixes_heads(self) -> bool:
        """Whether what is not finite in one head is NaN in all, being multiplied by the zeros of another weight."""
        return "o" in self.matrices.values() or self.tokens < 3

    @property
    def enlarges(self) -> float:
        """How many times as large as the logits their products are before they are scaled."""
        return WIDER**0.5 if self.square else 1.0

    @property
    def wider(self) -> int:
        """How many times as wide as a head of queries one of them is."""
        return WIDER if self.square else 1

    def words(self, tokens: Sequence[str]) -> str:
        """In a report. ``tokens``: what the arrays are called."""
        beside = {1: f", which lie side by side in {tokens[0]}", 2: f", of which keys and values lie side by side in {tokens[-1]}", 3: ""}
        wide = f"; as wide as the tokens, {WIDER} times as wide as queries" * self.square
        zeros = "; biases are 0" * bool(self.biases)
        return f"{', '.join(self.matrices)} {self.form} pick queries, keys and values{beside[self.tokens]}{wide}{zeros}"


def found(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Of the names of parameters those of weights, and of biases, each with what it projects to; both empty unless to q, k and v alike."""
    matrices = {name: part for name in names if (part := part_of(name))}
    projected = sorted("".join(part for part in matrices.values() if part != "o"))
    if projected != sorted("qkv") or list(matrices.values()).count("o") > 1:
        return {}, {}
    return matrices, {name: part for name in names if name not in matrices and (part := part_of(name, BIAS))}


def ways(tokens: int, matrices: Mapping[str, str], biases: Mapping[str, str], square: bool) -> list[Weights]:
    """The ways to give weights, the simplest first."""
    fused = any(len(part) > 1 for part in matrices.values())
    forms = (*FORMS, *(() if biases else HELD_BY))
    return [way for form in forms if not ((way := Weights(tokens, matrices, biases, form, square)).by_head and (fused or square))]


def tokens_and_weights(ways: Weights, operands: Sequence[Any], heads: int, fw: Framework) -> tuple[list[Any], dict[str, Any]]:
    """What is given instead of q, k and v of (…, length, heads · dim), and the weights and biases by name. Raises NotTaken for wide ones."""
    _, dtype, device = fw.describe(operands[0])
    widths = dict(zip("qkv", (x.shape[-1] for x in operands), strict=True))
    given = dict(zip("qkv", operands, strict=True))
    of_keys = heads * widths["k"] // (widths["q"] or 1)  # fewer, of grouped heads
    counts = {"q": heads, "k": of_keys, "v": of_keys}
    total = WIDER * widths["q"]
    if sum(widths.values()) * ways.wider > WIDEST:
        raise NotTaken(f"weights of more than {WIDEST // 3} features")
    tokens = []
    for held in HELD[ways.tokens]:
        parts = [given[part] for part in held]
        if ways.square:
            rest = total - sum(widths[part] for part in held)
            if rest < 0:
                raise NotTaken("values that are wider than the tokens")
            parts.append(fw.full((*parts[0].shape[:-1], rest), 0.0, dtype, device))
        tokens.append(fw.concatenate(parts, len(parts[0].shape) - 1) if len(parts) > 1 else parts[0])
    made = {name: _matrix(ways, part, widths, counts) for name, part in ways.matrices.items()}
    made |= {name: np.zeros(_matrix(ways, part, widths, counts).shape[-1:]) for name, part in ways.biases.items()}
    arrays = {name: fw.assign(fw.full(x.shape, 0.0, dtype, device), x) for name, x in made.items()}
    if ways.form not in HELD_BY:
        return tokens, arrays
    weight, bias = ast.literal_eval(ways.form.replace("{", "[").replace("}", "]"))
    outs = {name: x.shape[0 if HELD_BY[ways.form] == "(out, in)" else 1] for name, x in made.items()}
    return tokens, {name: {weight: x, bias: fw.full((outs[name],), 0.0, dtype, device)} for name, x in arrays.items()}


def _matrix(ways: Weights, part: str, widths: Mapping[str, int], counts: Mapping[str, int]) -> Array:
    """The matrix that picks a part, or several, out of what holds them; that of the output changes nothing. ``counts``: of heads."""
    heads = counts[part[0]] if part != "o" else counts["q"]
    if part == "o":
        matrix = np.eye(WIDER * widths["q"] if ways.square else widths["v"] * heads // (counts["v"] or 1))
        shape = (heads, len(matrix) // (heads or 1), len(matrix))
        return {"(out, in)": matrix.T, "(in, out)": matrix}.get(ways.shape, matrix.reshape(shape) if heads else matrix)
    matrix = np.concatenate([_pick(ways, one, widths, counts[one]) for one in part], axis=1)
    if ways.shape == "(out, in)":
        return matrix.T
    if ways.shape == "(in, out)" or not heads:
        return matrix
    by_head = matrix.reshape(len(matrix), heads, matrix.shape[1] // heads)
    return by_head if ways.form == "(in, heads, out)" else by_head.transpose(1, 0, 2)


def _pick(ways: Weights, part: str, widths: Mapping[str, int], heads: int) -> Array:
    """(in, out) of one part."""
    held = next(held for held in HELD[ways.tokens] if part in held)
    first = sum(widths[one] for one in held[: held.index(part)])
    width = widths[part]
    dim = width // (heads or 1)
    wider = ways.wider
    matrix = np.zeros((wider * widths["q"] if ways.square else sum(widths[one] for one in held), wider * width))
    at = np.arange(width)
    matrix[first + at, (at // (dim or 1)) * wider * dim + at % (dim or 1)] = 2.0 if ways.square and part == "q" else 1.0
    return matrix


def own_features(ways: Weights, out: Any, heads: int, dim: int, fw: Framework) -> Any:
    """Of an answer the features that are not padding."""
    if out.shape[-1] != ways.wider * heads * dim:
        return out
    by_head = out.reshape((*out.shape[:-1], heads, ways.wider * dim))[..., :dim]
    return by_head.reshape((*out.shape[:-1], heads * dim))
