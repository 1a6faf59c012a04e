"""Inputs on which the mutants show: a small set of calls that between them cover every condition a mutant depends on.

Each witness is a function of a fixed seed, so that the same call comes back every time it is asked for: `call()` makes fresh tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .attention.core import INF

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments by position, by keyword
LETTERS = {"B": 0, "H": 1, "L": 2, "S": 3}


@dataclass(frozen=True)
class Witness:
    """One call of a contract. `legal` is False where the call must raise."""

    name: str
    make: Callable[[], Call]
    legal: bool = True

    def __call__(self) -> Call:
        return self.make()


def _mask(random: torch.Generator, kind: str, form: str, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A mask such as kind "bool", form "B1LS": one letter or a 1 for each dimension."""
    shape = tuple(1 if letter == "1" else sizes[LETTERS[letter]] for letter in form)
    keep = torch.rand(shape, generator=random) > 0.4
    if kind in ("bool", "minus_infinity", "finfo_min", "mixed") and keep.ndim and shape[-1] > 1:
        keep[..., 0] |= ~keep.any(-1)  # most masks leave every row a key
    if kind == "bool":
        return keep
    if kind == "empty_rows":
        if keep.ndim > 1:
            keep[..., 1::2, :] = False
        return keep
    if kind == "batch":  # the first batch element sees nothing
        keep[0] = False
        return keep
    if kind == "all":
        return torch.ones_like(keep)
    if kind == "none":
        return torch.zeros_like(keep)
    if kind == "late":  # the first 20 keys are hidden
        return keep & (torch.arange(shape[-1]) >= 20)
    if kind == "early":  # only the first keys are visible
        return keep & (torch.arange(shape[-1]) < 10)
    bias = torch.randn(shape, generator=random, dtype=torch.float64)
    if kind == "minus_infinity":
        bias = torch.zeros(shape, dtype=torch.float64).masked_fill(~keep, -INF)
    if kind == "mixed":
        bias = bias.masked_fill(~keep, -INF)
    if kind == "finfo_min":
        bias = torch.zeros(shape, dtype=torch.float64).masked_fill(~keep, torch.finfo(dtype).min)
    if kind == "zero":
        bias = bias * 0
    if kind == "large":
        bias = bias * 0 - 6e4
    return bias.to(dtype)


def _attention(
    *,
    B: int = 2,
    H: int = 3,
    Hkv: int | None = None,
    L: int = 5,
    S: int = 7,
    D: int = 4,
    Dv: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    size: float = 1.0,
    mask: str = "",
    layout: str = "",
    edit: str = "",
    **options: Any,
) -> Call:
    random = torch.Generator().manual_seed(seed)
    kv_heads = H if Hkv is None else Hkv

    def normal(*shape: int) -> Tensor:
        return (size * torch.randn(shape, generator=random, dtype=torch.float64)).to(dtype)

    q, k, v = normal(B, H, L, D), normal(B, kv_heads, S, D), normal(B, kv_heads, S, Dv)
    if mask:
        kind, form = mask.split(":")
        options["attn_mask"] = _mask(random, kind, form, (B, H, L, S), dtype)
    if Hkv is not None:
        options["enable_gqa"] = True
    q, k, v, options = _edited(edit, q, k, v, options)
    q, k, v, options = _laid_out(layout, q, k, v, options)
    return (q, k, v), options


def _edited(edit: str, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Change some values: `edit` names what."""
    if edit == "nan_query":
        q[:, :, 1] = torch.nan
    if edit == "nan_value":
        v[0, 0, 0, 0] = torch.nan
    if edit == "nan_key":
        k[0, 0, 1, 0] = torch.nan
    if edit in ("hidden_nan_key", "hidden_nan_value", "hidden_infinity", "hidden_large"):  # key 2 is hidden from all
        options["attn_mask"] = (torch.arange(k.shape[2]) != 2).expand(q.shape[2], -1).clone()
        if edit == "hidden_nan_key":
            k[:, :, 2] = torch.nan
        elif edit == "hidden_large":
            k[:, :, 2], v[:, :, 2] = 1e4 * q[:, :, :1].mean(2), 1e4
        else:
            v[:, :, 2] = INF if edit == "hidden_infinity" else torch.nan
    if edit == "zero_sum_key":
        k[:, :, 2] = torch.tensor([1.0, -1.0, 2.0, -2.0]).to(k.dtype)
    if edit == "zero_query":
        q.zero_()
    if edit == "negative_logits":  # every logit near -1e5
        q[...], k[...] = -200.0, 500.0 + k
    if edit == "equal_keys":
        k[...] = k[:, :, :1].clone()
    if edit == "near_ties":
        k[...] = k[:, :, :1] * (1 + 1e-6 * torch.arange(k.shape[2])[:, None]).to(k.dtype)
    if edit == "increasing":  # logits grow along the keys
        q[...] = 1.0
        k[...] = (torch.arange(k.shape[2])[:, None] * 0.5).to(k.dtype)
    if edit == "decreasing":
        q[...] = 1.0
        k[...] = (-torch.arange(k.shape[2])[:, None] * 5.0).to(k.dtype)
    if edit == "uneven_rows":  # one row, one head and one batch element with enormous logits
        q[0], q[:, 0], q[:, :, 0] = q[0] * 50, q[:, 0] * 50, q[:, :, 0] * 50
        k *= 20
    if edit == "large_values":
        v *= 1e4
    if edit == "huge_values":  # near the limit of float16, all of one sign
        v[...] = 6e4
    if edit == "beyond_float16":
        v[...] = 1e5
    if edit == "small_values":
        v *= 1e-8
    if edit == "tiny":
        q, k = q * 1e-21, k * 1e21
    if edit == "overflowing_products":  # q · k above 65504 although scale · q · k is not
        q *= 100
        k *= 400
        options["scale"] = 1e-5
    return q, k, v, options


def _laid_out(layout: str, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """The same values in other memory: `layout` names how."""
    if layout == "by_length":  # (B, L, H, D) seen as (B, H, L, D)
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    if layout == "by_feature":
        q, k, v = (x.mT.contiguous().mT for x in (q, k, v))
    if layout == "values_by_feature":
        v = v.mT.contiguous().mT
    if layout == "offset":
        q, k, v = (torch.cat([x[:1] * 0 + 9, x])[1:] for x in (q, k, v))
    if layout == "every_second":
        q, k, v = (x.repeat_interleave(2, 2)[:, :, ::2] + 0 * x for x in (q, k, v))
        q, k, v = (torch.stack([x, x.flip(2) + 1], 3).flatten(2, 3)[:, :, ::2] for x in (q, k, v))
    if layout == "expanded":
        k, v = (x[:1, :1].expand(x.shape) for x in (k, v))
    if layout == "expanded_mask":
        options["attn_mask"] = options["attn_mask"][:, :1].expand(-1, q.shape[1], -1, -1)
    return q, k, v, options


HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32

ATTENTION: tuple[dict[str, Any], ...] = (
    {},
    {"Hkv": 3},
    {"H": 4, "Hkv": 2},
    {"H": 6, "Hkv": 2},
    {"H": 4, "Hkv": 1},
    {"is_causal": True},
    {"is_causal": True, "L": 7, "S": 5},
    {"is_causal": True, "L": 9, "S": 9},
    {"is_causal": True, "L": 9, "S": 9, "Dv": 4},
    {"is_causal": True, "L": 1},
    {"is_causal": True, "L": 40, "S": 40, "B": 1, "H": 1},
    {"is_causal": True, "L": 20, "S": 40, "B": 1, "H": 1},
    {"is_causal": True, "L": 135, "S": 135, "B": 1, "H": 1, "D": 2, "Dv": 1},
    {"is_causal": True, "L": 262, "S": 262, "B": 1, "H": 1, "D": 1, "Dv": 1},
    {"is_causal": True, "scale": 0.3},
    {"is_causal": True, "mask": "bool:BHLS"},
    {"is_causal": True, "mask": "mixed:BHLS"},
    {"is_causal": True, "mask": "zero:LS"},
    {"is_causal": True, "mask": "late:LS", "L": 30, "S": 30, "B": 1, "H": 1},
    {"is_causal": True, "edit": "increasing", "size": 5.0, "scale": 5000.0},
    {"scale": 0.0},
    {"scale": -0.7},
    {"scale": 1e-8, "size": 30.0},
    {"scale": 1.0},
    {"scale": 3.0},
    {"scale": 0.1, "mask": "mixed:LS"},
    {"scale": 1e-12, "mask": "bool:BHLS"},
    {"scale": 0.0, "mask": "bool:BHLS"},
    {"scale": 1e10, "mask": "bool:BHLS"},
    {"scale": 1e31, "mask": "bool:BHLS"},
    {"scale": 1e31, "edit": "decreasing", "mask": "bool:BHLS"},
    {"scale": 40.0},
    {"scale": 300.0, "mask": "mixed:BHLS"},
    {"mask": "bool:BHLS"},
    {"mask": "bool:BHLS", "is_causal": True, "dtype": SINGLE},
    {"mask": "bool:B1LS"},
    {"mask": "bool:B11S"},
    {"mask": "bool:HLS"},
    {"mask": "bool:LS"},
    {"mask": "bool:LS", "L": 7},
    {"mask": "bool:1S", "L": 7},
    {"mask": "bool:S"},
    {"mask": "bool:S", "L": 7},
    {"mask": "bool:L1"},
    {"mask": "mixed:L1"},
    {"mask": "bool:B1L1"},
    {"mask": "none:"},
    {"mask": "all:LS"},
    {"mask": "none:LS"},
    {"mask": "empty_rows:BHLS"},
    {"mask": "batch:BHLS", "B": 3},
    {"mask": "empty_rows:BHLS", "is_causal": True},
    {"mask": "empty_rows:LS", "S": 40, "B": 1},
    {"mask": "minus_infinity:BHLS"},
    {"mask": "mixed:BHLS"},
    {"mask": "mixed:B1LS"},
    {"mask": "mixed:LS", "dtype": SINGLE},
    {"mask": "finfo_min:LS"},
    {"mask": "finfo_min:LS", "dtype": SINGLE},
    {"mask": "float:LS"},
    {"mask": "float:S"},
    {"mask": "large:LS"},
    {"mask": "late:LS", "S": 45, "B": 1},
    {"mask": "early:LS", "S": 45, "B": 1},
    {"mask": "bool:LS", "S": 45, "L": 6, "B": 1},
    {"mask": "bool:BHLS", "L": 4, "B": 3},
    {"mask": "bool:HLS", "B": 3},
    {"mask": "bool:BHLS", "B": 3, "H": 3},
    {"mask": "bool:B1LS", "B": 2, "H": 4, "Hkv": 2},
    {"mask": "mixed:BHLS", "size": 30.0},
    {"mask": "bool:BHLS", "size": 30.0},
    {"mask": "bool:BHLS", "size": 300.0},
    {"mask": "bool:B1LS", "layout": "expanded_mask"},
    {"mask": "bool:LS", "edit": "zero_query"},
    {"S": 1},
    {"S": 1, "L": 1, "Dv": 4},
    {"S": 1, "H": 2, "L": 1, "mask": "bool:BHLS"},
    {"L": 1},
    {"B": 1},
    {"B": 1, "H": 1},
    {"L": 7, "S": 3},
    {"Dv": 4},
    {"Dv": 4, "L": 7},
    {"D": 3, "Dv": 9},
    {"D": 11},
    {"D": 1},
    {"D": 70},
    {"D": 64, "Dv": 64, "L": 2},
    {"S": 4, "D": 4},
    {"L": 4, "S": 4, "D": 4},
    {"L": 3, "S": 3, "B": 3},
    {"L": 3, "S": 3, "H": 3, "B": 2},
    {"S": 3, "H": 3},
    {"B": 3, "H": 3},
    {"B": 2, "H": 4, "Hkv": 2},
    {"H": 10, "B": 1},
    {"H": 18, "B": 1, "L": 2, "S": 3},
    {"B": 10, "H": 1, "L": 2, "S": 3},
    {"S": 16, "L": 16},
    {"S": 17, "L": 20},
    {"S": 33, "L": 33, "B": 1},
    {"S": 40, "L": 3, "size": 3.0},
    {"S": 64, "L": 3, "H": 1},
    {"S": 65, "L": 65, "H": 1, "B": 1},
    {"S": 70, "L": 70, "H": 1, "B": 1, "edit": "increasing"},
    {"S": 40, "L": 2, "edit": "decreasing"},
    {"S": 130, "L": 3, "H": 1, "B": 1, "size": 3.0},
    {"S": 40, "L": 3, "edit": "negative_logits"},
    {"S": 40, "L": 3, "edit": "negative_logits", "dtype": SINGLE},
    {"edit": "zero_query"},
    {"edit": "equal_keys"},
    {"edit": "near_ties"},
    {"edit": "uneven_rows"},
    {"edit": "nan_query"},
    {"edit": "nan_key"},
    {"edit": "nan_value"},
    {"edit": "hidden_nan_key"},
    {"edit": "hidden_nan_value"},
    {"edit": "hidden_infinity"},
    {"edit": "hidden_large"},
    {"edit": "zero_sum_key"},
    {"edit": "tiny"},
    {"edit": "small_values"},
    {"edit": "large_values"},
    {"edit": "large_values", "dtype": BRAIN},
    {"edit": "beyond_float16", "dtype": BRAIN},
    {"edit": "huge_values", "dtype": HALF},
    {"edit": "overflowing_products", "dtype": HALF},
    {"edit": "equal_keys", "dtype": HALF, "S": 60, "D": 300, "L": 2},
    {"size": 20.0},
    {"size": 20.0, "dtype": SINGLE},
    {"size": 100.0},
    {"dtype": SINGLE},
    {"dtype": SINGLE, "S": 50},
    {"dtype": SINGLE, "edit": "overflowing_products"},
    {"dtype": HALF},
    {"dtype": HALF, "S": 50, "D": 40, "size": 2.0},
    {"dtype": HALF, "mask": "bool:BHLS"},
    {"dtype": HALF, "mask": "mixed:BHLS", "size": 3.0},
    {"dtype": HALF, "mask": "empty_rows:BHLS"},
    {"dtype": BRAIN},
    {"dtype": BRAIN, "S": 50, "D": 40},
    {"dtype": BRAIN, "D": 5, "size": 3.0},
    {"dtype": BRAIN, "mask": "bool:BHLS"},
    {"dtype": BRAIN, "mask": "mixed:BHLS", "size": 3.0},
    {"layout": "by_length"},
    {"layout": "by_length", "is_causal": True},
    {"layout": "by_feature"},
    {"layout": "values_by_feature", "Dv": 4},
    {"layout": "offset"},
    {"layout": "every_second"},
    {"layout": "expanded", "S": 17},
    {"layout": "expanded"},
    {"S": 0},
    {"L": 0},
    {"B": 0},
    {"S": 0, "mask": "bool:LS"},
)


def attention_witnesses() -> Iterator[Witness]:
    """Calls of the attention contract, legal and illegal."""
    for changes in ATTENTION:
        name = " ".join(f"{key}={value}" for key, value in changes.items()) or "plain"
        yield Witness(name, lambda changes=changes: _attention(**changes))  # type: ignore[misc]
    base = _attention()
    (q, k, v), wrong = base[0], torch.ones(4, 7, dtype=torch.bool)
    for name, args, options in (
        ("values longer than keys", (q, k, torch.cat([v, v], 2)), {}),
        ("keys longer than values", (q, torch.cat([k, k], 2), v), {}),
        ("keys with more features", (q, torch.cat([k, k], 3), v), {}),
        ("a larger batch of keys", (q, torch.cat([k, k]), torch.cat([v, v])), {}),
        ("heads that do not divide", (q, k[:, :2], v[:, :2]), {"enable_gqa": True}),
        ("a mask that does not fit", (q, k, v), {"attn_mask": wrong}),
    ):
        yield Witness(name, lambda args=args, options=options: (args, options), legal=False)  # type: ignore[misc]


def _layer(
    *,
    B: int = 2,
    L: int = 5,
    S: int = 5,
    H: int = 2,
    E: int = 6,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    biases: str = "qkvo",
    mask: str = "",
    padding: str = "",
    cross: bool = True,
    alike: str = "",
    learned: bool = False,
    **options: Any,
) -> Call:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)

    query, key, value = normal(B, L, E), normal(B, S, E), normal(B, S, E)
    if not cross:
        key = value = query
    if alike == "key, value":
        value = key
    if alike == "query, key":
        key = query
    weights = {f"w_{name}": normal(E, E) for name in "qkvo"}
    weights.update({f"b_{name}": normal(E) for name in biases})
    if mask:
        kind, form = mask.split(":")
        options["attn_mask"] = _mask(random, kind, form, (B, H, L, S), dtype)
    if padding == "tail":
        options["key_padding_mask"] = torch.arange(S) >= torch.tensor([[S - 1], [S - 2], [S - 3]])[:B]
    if padding == "holes":
        options["key_padding_mask"] = torch.rand((B, S), generator=random) > 0.5
        options["key_padding_mask"][:, 2] = False
    if padding == "all":
        options["key_padding_mask"] = torch.arange(B)[:, None].expand(B, S) == 0
    if learned:
        options |= {"bias_k": normal(E), "bias_v": normal(E)}
    return (query, key, value, weights), {"num_heads": H, **options}


LAYER: tuple[dict[str, Any], ...] = (
    {},
    {"biases": ""},
    {"biases": "", "need_weights": False},
    {"need_weights": False},
    {"biases": "qvo"},
    {"biases": "qkv"},
    {"cross": False},
    {"cross": False, "is_causal": True, "mask": "bool:BHLS"},
    {"cross": False, "need_weights": False, "mask": "bool:BHLS"},
    {"alike": "key, value"},
    {"alike": "query, key"},
    {"S": 7},
    {"L": 7, "S": 4, "H": 3},
    {"H": 1},
    {"H": 3, "B": 1},
    {"B": 5, "H": 3},
    {"is_causal": True},
    {"is_causal": True, "need_weights": False},
    {"is_causal": True, "mask": "bool:BHLS"},
    {"is_causal": True, "mask": "bool:BHLS", "need_weights": False},
    {"is_causal": True, "padding": "holes", "S": 7},
    {"mask": "bool:BHLS"},
    {"mask": "bool:BHLS", "H": 3, "B": 3},
    {"mask": "bool:HLS"},
    {"mask": "bool:LS", "S": 7},
    {"mask": "float:LS"},
    {"mask": "float:LS", "need_weights": False},
    {"mask": "empty_rows:BHLS"},
    {"mask": "empty_rows:BHLS", "need_weights": False},
    {"padding": "tail"},
    {"padding": "tail", "mask": "all:LS"},
    {"padding": "tail", "S": 7},
    {"padding": "holes"},
    {"padding": "holes", "H": 3, "B": 3},
    {"padding": "all", "S": 7},
    {"padding": "all", "S": 7, "need_weights": False},
    {"padding": "holes", "mask": "bool:BHLS"},
    {"padding": "holes", "need_weights": False},
    {"learned": True},
    {"learned": True, "is_causal": True, "need_weights": False},
    {"add_zero_attn": True},
    {"add_zero_attn": True, "learned": True, "mask": "bool:BHLS"},
    {"dtype": SINGLE},
    {"dtype": SINGLE, "need_weights": False},
    {"dtype": HALF},
    {"dtype": BRAIN},
)


def layer_witnesses() -> Iterator[Witness]:
    """Calls of the multihead contract."""
    for changes in LAYER:
        name = " ".join(f"{key}={value}" for key, value in changes.items()) or "plain"
        yield Witness(name, lambda changes=changes: _layer(**changes))  # type: ignore[misc]


def witnesses(contract: str) -> list[Witness]:
    """All witnesses of a contract."""
    return list({"attention": attention_witnesses, "multihead": layer_witnesses}[contract]())
