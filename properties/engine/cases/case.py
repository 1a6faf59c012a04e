"""A case: everything that determines one call of an attention, as independent scalars.

Hypothesis draws and shrinks the scalars; the tensors follow from them (``inputs.py``). A case prints only what differs
from the simplest one, and what it prints evaluates back to it.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

TENSORS = ("q", "k", "v")
PROGRAM = ("fork", "back", "reset", "truncate", "reorder")  # what may happen between the chunks that a cache is told

Edit = tuple[str, int, float]  # tensor, flat index (modulo its size), special value


@dataclass(frozen=True, repr=False)
class Case:
    """One call. Shapes: q (batch, kv_heads·group, queries, dim), k (batch, kv_heads, keys, dim), v (…, keys, value_dim)."""

    batch: int = 1
    kv_heads: int = 1
    group: int = 1  # query heads that share one key/value head
    queries: int = 1
    keys: int = 1
    dim: int = 1
    value_dim: int | None = None  # None: the same as dim
    dtype: str = "float64"
    device: str = "cpu"
    is_causal: bool = False
    scale: float | None = None  # None: the parameter is not passed
    mask: str = "none"  # which keys are visible: a family of inputs.MASKS
    mask_kind: str = "bool"  # how that is said: inputs.MASK_KINDS
    mask_axes: str = "LS"  # the axes, of B H L S, along which the mask varies; the others have size 1
    mask_rank: int = 2  # leading axes along which the mask does not vary are dropped down to this rank
    mask_density: float = 0.5
    window_left: int | None = None  # keys visible before the diagonal; None: all. Not passed where both sides are None
    window_right: int | None = None  # keys visible after it
    softcap: float | None = None  # None: the parameter is not passed; so with the three below
    alibi: bool = False  # alibi_slopes is given, one per head
    sinks: bool = False  # sinks is given, one logit per head
    lengths: bool = False  # kv_lengths is given, one per batch element
    values: str = "normal"  # a regime of regimes.REGIMES
    magnitude: int = 0  # q is multiplied by 2**magnitude
    layout: str = "contiguous"  # how the arrays lie in memory: frameworks.LAYOUTS
    grad: str = "normal"  # the gradient of the output: grad_output.GRADS
    grad_layout: str = "contiguous"  # and how it lies in memory: grad_output.GRAD_LAYOUTS
    explicit: bool = False  # parameters are passed even where they have their default value
    with_bias: bool = True  # layers: the projections have biases
    hidden: int = 1  # encoder and decoder layers: features between the two linear maps of the feed-forward part
    norm_first: bool = False
    activation: str = "relu"  # or gelu
    padding: bool = False  # key_padding_mask is given
    memory_mask: str = "none"  # decoder layers: which tokens of the memory are visible, said as ``mask`` is
    memory_padding: bool = False  # memory_key_padding_mask is given
    packing: str = "equal"  # packed sequences: how long they are, of packed_trial.PACKINGS
    offset: int = 0  # positions: the first one
    scattered: bool = False  # positions: drawn about the offset instead of consecutive
    base: float | None = None  # sinusoids, rotations, rotary caches: base of the frequencies; None: the parameter is not passed
    rotary_dim: int | None = None  # rotations: how many of the features rotate; None: the parameter is not passed
    bidirectional: bool = True  # buckets: future and past have buckets of their own
    num_buckets: int = 32
    max_distance: int = 128  # buckets: distances beyond it share the last one
    chunks: tuple[int, ...] = ()  # caches: tokens of each append, the last size again and again; (): all at once
    spare: int = 0  # caches: slots beyond the tokens of the case
    page_size: int | None = None  # caches: None: the parameter is not passed
    padded: bool = False  # caches: the first chunk is padded on the left, each sequence in its own way
    program: tuple[str, ...] = ()  # caches: what happens between the chunks, words of PROGRAM
    seed: int = 0
    edits: tuple[Edit, ...] = ()

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.kv_heads * self.group

    @property
    def width(self) -> int:
        """Features of a value."""
        return self.dim if self.value_dim is None else self.value_dim

    def differing(self) -> dict[str, Any]:
        """The fields that differ from the simplest case, in the order of the declaration."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def __repr__(self) -> str:
        return "Case(" + ", ".join(f"{name}={value!r}" for name, value in self.differing().items()) + ")"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read back what ``repr`` prints; nothing is executed.

        Raises ValueError with one sentence if the text is not a case.
        """
        try:
            call = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            raise ValueError(f"not a case: {text!r}; expected for example Case(queries=4, is_causal=True)") from None
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Case"):
            raise ValueError(f"not a case: {text!r}; expected for example Case(queries=4, is_causal=True)")
        known = {field.name for field in dataclasses.fields(cls)}
        fields: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg not in known:
                raise ValueError(f"a case has no field {keyword.arg!r}; its fields are {', '.join(sorted(known))}")
            if keyword.arg in fields:
                raise ValueError(f"the field {keyword.arg!r} is given twice")
            fields[keyword.arg] = _literal(keyword.value)
        if call.args:
            raise ValueError("the fields of a case are given by name")
        return cls(**fields)


def _literal(node: ast.expr) -> Any:
    """``ast.literal_eval`` that also knows the names inf and nan, which ``repr`` of a float prints."""
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return math.inf if node.id == "inf" else math.nan
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _literal(node.operand)
        if isinstance(operand, int | float):
            return -operand
    if isinstance(node, ast.Tuple):
        return tuple(_literal(element) for element in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"not a literal value: {ast.unparse(node)}") from None
