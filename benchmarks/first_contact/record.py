"""What the table says of an attention: the conventions it speaks, its wrong twins, and a small example for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Speaks:
    """The conventions that a checker should find out by itself.

    Axes are letters: b batch, h heads, l queries or keys by their position, d features, s keys, k key heads, g group; (bh) is folded
    into one, 3 is query, key and value in one tensor, and [ld] a list with one matrix for each head.
    """

    framework: str = "torch"
    layout: str = "bhld"
    key_layout: str = ""  # where it is another one
    out_layout: str = ""
    heads: str = "equal"  # or "grouped": fewer key heads, without a flag; "flag": with enable_gqa; "one": keys have no axis of heads
    names: Mapping[str, str] = field(default_factory=dict)  # mask, bias, causal, scale, window, softcap, … → the name of the parameter
    mask: tuple[str, ...] = ()  # "true seen", "true hidden", "0 hidden", "1 seen", "1 hidden", "additive"
    mask_axes: str = "bhls"  # 1 broadcasts
    bias_axes: str = "bhls"
    fill: float | None = None  # what takes the place of −∞, where it is so small that large logits may come near
    causal: str = "never"  # "flag", "always", or "mask='causal'"
    corner: str = "square"  # "top-left", "bottom-right"; "square": causal for L = S alone
    single_query: str = ""  # "sees all": is never causal
    together: str = "both"  # mask with causality: or "refused", "mask alone"
    scale: str = "1/sqrt(d)"  # the default: or "1/d", "1", "required"
    window: str = ""  # "(left, right)", "left", "own included"
    always_window: tuple[int, int] | None = None
    empty_rows: str = ""  # "nan", "zero", "mean"
    returns: tuple[str, ...] = ("out",)  # in this order: "out", "weights", "lse", "probabilities", "None"
    result: str = "array"  # "tuple", "dict", "named", "out argument"
    lse_base: float | None = None  # None: e
    given: Mapping[str, Any] = field(default_factory=dict)  # required, or set to have all results
    first: str = ""  # "module": comes before query, key and value
    keyword_only: bool = False
    square: bool = False  # L = S alone
    dims: tuple[int, ...] = ()  # the only head dims
    multiple: int = 1  # of which lengths are multiples
    same_dims: bool = False  # Dv = D alone
    dtypes: tuple[str, ...] = ()  # the only ones
    computes: str = ""  # "float32": whatever comes, in whole or in part
    refuses: tuple[str, ...] = ()  # more, in words


@dataclass(frozen=True, kw_only=True)
class Example:
    """A small problem; the tensors follow from it and from the conventions. Sizes that the conventions do not allow are made to fit."""

    batch: int = 2
    heads: int = 4
    queries: int = 5
    keys: int = 7
    dim: int = 8
    value_dim: int | None = None
    mask: str = (
        ""  # "random"; "empty row": and the first query sees nothing; "not the first": all but the first query see all but the first key
    )
    kind: int = 0  # which of the kinds of mask
    bias: bool = False
    padding: bool = False
    causal: bool = False
    scale: float | None = None
    window: tuple[int, int] | None = None
    softcap: float | None = None
    slopes: bool = False
    lengths: bool = False
    dropout: float | None = None
    magnitude: float = 1.0  # of the queries
    calls: int = 1  # with the same tensors
    gradient: str = ""  # compared instead of the output: "q", "k", "v" or "bias"
    seed: int = 0


@dataclass(frozen=True)
class Twin:
    """``function`` after the two underscores, what is wrong with it, and a problem on which it shows."""

    mistake: str
    cause: str
    example: Example = Example()
    core: bool = True  # finite numbers, rows that see a key
    documented: str = ""  # whose documentation makes it a mistake, where another convention of the field would allow it


@dataclass(frozen=True)
class Entry:
    module: str
    function: str
    style: str
    speaks: Speaks
    twins: tuple[Twin, ...]

    @property
    def file(self) -> Path:
        return HERE / f"{self.module}.py"

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}"

    def twin(self, twin: Twin) -> str:
        return f"{self.function}__{twin.mistake}"
