"""A call of an attention before its numbers are drawn, and the drawing: what the table of every peer is made of."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

INF = math.inf


@dataclass(frozen=True)
class Call:
    """Sizes, type, distribution and options of one call. All sequences of one call have the same length."""

    shape: tuple[int, int, int, int, int]  # batch, heads, queries, keys, features
    dtype: str = "float32"
    draw: str = "normal"  # see _number
    factor: float = 1.0  # numbers are multiplied by it
    kv_heads: int = 0  # 0: as many as heads
    value_dim: int = 0  # 0: as many as features
    causal: bool = False
    mask: str = ""  # see _mask
    mask_axes: str = "BHLS"  # the others have size 1; "LS" and "HLS" have rank 2 and 3
    scale: float | None = None
    blhd: bool = False  # memory laid out as (batch, length, heads, features), as many libraries keep it
    seed: int = 0

    def __str__(self) -> str:
        batch, heads, queries, keys, dim = self.shape
        heads_text = f"{heads}" if self.kv_heads in (0, heads) else f"{heads}/{self.kv_heads}"
        extra = [self.mask and f"{self.mask} mask", "causal" * self.causal, f"scale {self.scale}" * (self.scale is not None)]
        words = [self.dtype, f"B{batch} H{heads_text} L{queries} S{keys} D{dim}", self.draw, *extra, f"seed {self.seed}" * (self.seed > 0)]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, eq=False)
class Arguments:
    """The tensors of one call."""

    call: Call
    q: Tensor  # (B, H, L, D)
    k: Tensor  # (B, Hkv, S, D)
    v: Tensor  # (B, Hkv, S, Dv)
    mask: Tensor | None  # broadcasts to (B, H, L, S); bool: True = attend, float: added

    def fresh(self) -> Arguments:
        """A copy with the same strides, for a callable that may write into it."""
        mask = None if self.mask is None else self.mask.clone()
        return replace(self, q=self.q.clone(), k=self.k.clone(), v=self.v.clone(), mask=mask)

    def unchanged(self) -> bool:
        """Whether these are still the numbers that were drawn."""
        drawn = draw(self.call)
        pairs = [(self.q, drawn.q), (self.k, drawn.k), (self.v, drawn.v)]
        if self.mask is not None and drawn.mask is not None:
            pairs.append((self.mask, drawn.mask))
        return all(torch.equal(mine, its) for mine, its in pairs)


@dataclass(frozen=True)
class Subject:
    """A callable under test."""

    function: Callable[..., Any]
    contains_nan: bool = True  # declared: NaN in a hidden key or value reaches nothing

    def takes(self, call: Call) -> bool:
        """Whether every parameter that the call uses is one of the callable's."""
        formal = inspect.signature(self.function).parameters
        used = {
            "attn_mask": bool(call.mask),
            "is_causal": call.causal,
            "scale": call.scale is not None,
            "enable_gqa": call.kv_heads not in (0, call.shape[1]),
        }
        return all(name in formal for name, needed in used.items() if needed)

    def __call__(self, given: Arguments) -> Tensor:
        call = given.call
        options: dict[str, Any] = {}
        if given.mask is not None:
            options["attn_mask"] = given.mask
        if call.causal:
            options["is_causal"] = True
        if call.scale is not None:
            options["scale"] = call.scale
        if call.kv_heads not in (0, call.shape[1]):
            options["enable_gqa"] = True
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # whatever the call does to it
            result: Tensor = self.function(given.q, given.k, given.v, **options)
        return result


@cache
def draw(call: Call) -> Arguments:
    """The numbers of a call: a function of the call alone. Not to be written into: take a fresh() copy."""
    generator = torch.Generator().manual_seed(call.seed)
    batch, heads, queries, keys, dim = call.shape
    kv_heads, width = call.kv_heads or heads, call.value_dim or dim
    dtype = getattr(torch, call.dtype)
    tensors = []
    for count, length, features in ((heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, width)):
        size = (batch, length, count, features) if call.blhd else (batch, count, length, features)
        numbers = _number(call.draw, size, generator) * call.factor
        tensors.append((numbers.transpose(1, 2) if call.blhd else numbers).to(dtype))
    q, k, v = tensors
    if call.draw == "zero logits":
        q, k = q * 0, k * 0
    if call.draw == "negative rows":  # one feature of every key, and of every second query, makes all logits about -256
        k[..., 0] = 16.0
        q[..., ::2, 0] = -16.0 * 2.0 ** math.ceil(math.log2(dim) / 2)
    if call.draw == "nan query":
        q[:, :, queries // 2, 0] = math.nan
    return Arguments(call, q, k, v, _mask(call, generator))


def _number(kind: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if kind == "constant":
        return torch.ones(size)
    if kind == "uniform":  # [0, 1)
        return torch.rand(size, generator=generator)
    if kind in ("small integers", "negative rows"):  # -2 … 2, three in four are 0
        kept = torch.rand(size, generator=generator) < 0.25
        return torch.randint(-2, 3, size, generator=generator) * kept.float()
    return torch.randn(size, generator=generator)


def _mask(call: Call, generator: torch.Generator) -> Tensor | None:
    if not call.mask:
        return None
    batch, heads, queries, keys, _ = call.shape
    full = {"B": batch, "H": heads, "L": queries, "S": keys}
    size = tuple(full[axis] if axis in call.mask_axes else 1 for axis in "BHLS")
    rank = 4 if "B" in call.mask_axes else len(call.mask_axes)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    if call.mask == "all true":
        mask = torch.ones(size, dtype=torch.bool)
    elif call.mask == "padding":  # each batch element has its own length
        lengths = torch.randint(1, keys + 1, (batch, 1, 1, 1), generator=generator)
        return j.expand(batch, 1, 1, keys) < lengths
    elif call.mask == "window":  # a quarter of the keys to the left, an eighth to the right
        return (i - j <= keys // 4) & (j - i <= keys // 8)
    elif call.mask == "alibi":
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        return (-(slopes[:, None, None]) * (i - j).abs()).to(getattr(torch, call.dtype))
    elif call.mask == "random":  # every second pair, in every row at least one key
        mask = torch.rand(size, generator=generator) < 0.5
        mask |= ~mask.any(-1, keepdim=True)
    elif call.mask == "empty rows":  # a random mask; the first row and a third of the others see nothing
        mask = torch.rand(size, generator=generator) < 0.5
        mask[..., ::3, :] = False
    elif call.mask == "empty rows, float":
        mask = torch.zeros(size, dtype=getattr(torch, call.dtype))
        mask[..., ::3, :] = -INF
    else:  # "uniform bias" and "normal bias"
        mask = _number(call.mask.removesuffix(" bias"), size, generator).to(getattr(torch, call.dtype))
    return mask.reshape(size[4 - rank :])
