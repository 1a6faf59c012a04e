"""The honest multi-head layer, as a row of steps for mutants to replace.

    layer = W_o · concat over heads of attention(W_q · query, W_k · key, W_v · value)

`weights` maps w_q, w_k, w_v, w_o to (E, E) in the layout of nn.Linear, and b_q … b_o, possibly absent, to (E,). A bool `attn_mask` means
True = attend; in `key_padding_mask` (B, S) True = padding. Returns (out (B, L, E), weights (B, H, L, S) or None). Half precision is
computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import core
from ..attention.core import Step, both, frontier, hide, mix, read_mask, scores, softmax, widen

Weights = Mapping[str, Tensor]
Answer = tuple[Tensor, Tensor | None]


def check(query: Tensor, key: Tensor, value: Tensor, weights: Weights, num_heads: int) -> None:
    """Raise ValueError where the shapes do not fit together."""
    if not query.ndim == key.ndim == value.ndim == 3:
        raise ValueError(f"query, key and value need 3 dimensions, got {query.ndim}, {key.ndim} and {value.ndim}")
    batch, _, embed = query.shape
    if key.shape != value.shape or key.shape[0] != batch or key.shape[2] != embed:
        raise ValueError(f"shapes do not fit: {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}")
    if num_heads < 1 or embed % num_heads:
        raise ValueError(f"{num_heads} heads do not divide {embed} features")
    for name in ("w_q", "w_k", "w_v", "w_o"):
        if tuple(weights[name].shape) != (embed, embed):
            raise ValueError(f"{name} is {tuple(weights[name].shape)}, not {(embed, embed)}")


def check_masks(attn_mask: Tensor | None, key_padding_mask: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise ValueError where a mask does not fit (B, H, L, S)."""
    if key_padding_mask is not None and tuple(key_padding_mask.shape) != (shape[0], shape[3]):
        raise ValueError(f"key_padding_mask is {tuple(key_padding_mask.shape)}, not {(shape[0], shape[3])}")
    if attn_mask is not None:
        pairs = zip(reversed(attn_mask.shape), reversed(shape), strict=False)
        if attn_mask.ndim > 4 or any(size not in (1, full) for size, full in pairs):
            raise ValueError(f"mask {tuple(attn_mask.shape)} does not broadcast to {shape}")


def project(x: Tensor, weights: Weights, name: str) -> Tensor:
    """x Wᵀ + b, for name in q, k, v, o."""
    out, bias = x @ widen(weights["w_" + name]).mT, weights.get("b_" + name)
    return out if bias is None else out + widen(bias)


def split(x: Tensor, num_heads: int) -> Tensor:
    """(B, L, H·D) -> (B, H, L, D)."""
    return x.unflatten(-1, (num_heads, x.shape[-1] // num_heads)).transpose(1, 2)


def join(x: Tensor) -> Tensor:
    """(B, H, L, D) -> (B, L, H·D)."""
    return x.transpose(1, 2).flatten(2)


def appended(x: Tensor, learned: Tensor | None, zero: bool) -> Tensor:
    """(B, S, E) -> (B, S + N, E): behind the keys, or values, of every sequence one that is learned, and one of zeros."""
    more = [row.expand(len(x), 1, -1) for row in ([] if learned is None else [widen(learned)]) + [x.new_zeros(x.shape[2])] * zero]
    return torch.cat([x, *more], dim=1)


def behind(mask: Tensor | None, shape: tuple[int, ...], keys: int, value: bool | float) -> Tensor | None:
    """A mask of the keys that were given as one of all keys, with one value for those that are appended."""
    if mask is None or keys == shape[3]:
        return mask
    return functional.pad(mask.expand(*mask.shape[:-1], shape[3]), (0, keys - shape[3]), value=value)


def padding(key_padding_mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """The keys that are not padding: (B, 1, 1, S)."""
    return None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]


def multihead(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    add_zero_attn: bool = False,
    need_weights: bool = True,
    project: Step = project,
    split: Step = split,
    appended: Step = appended,
    behind: Step = behind,
    default_scale: Step = core.default_scale,
    scores: Step = scores,
    read_mask: Step = read_mask,
    padding: Step = padding,
    frontier: Step = frontier,
    both: Step = both,
    hide: Step = hide,
    softmax: Step = softmax,
    mix: Step = mix,
    join: Step = join,
) -> Answer:
    """The layer. The keywords after `need_weights` are its steps."""
    check(query, key, value, weights, num_heads)
    shape = (query.shape[0], num_heads, query.shape[1], key.shape[1])
    check_masks(attn_mask, key_padding_mask, shape)
    named = zip((query, key, value), "qkv", strict=True)
    q, k, v = (project(widen(x), weights, name) for x, name in named)  # (B, L, E), (B, S, E) twice
    k, v = appended(k, bias_k, add_zero_attn), appended(v, bias_v, add_zero_attn)  # (B, S + N, E)
    q, k, v = (split(x, num_heads) for x in (q, k, v))  # (B, H, L, D), (B, H, S + N, D) twice
    visible, bias = read_mask(attn_mask, shape)
    visible = both(both(visible, padding(key_padding_mask, shape)), frontier(*shape[2:]) if is_causal else None)
    visible, bias = behind(visible, shape, k.shape[2], True), behind(bias, shape, k.shape[2], 0.0)
    weight = softmax(hide(scores(q, k, default_scale(q)), visible, bias), visible)  # (B, H, L, S)
    out = project(join(mix(weight, v, visible)), weights, "o").to(query.dtype)  # (B, L, E)
    return out, weight.to(query.dtype) if need_weights else None


def renamed(weights: Weights, **changes: Tensor | None) -> dict[str, Tensor]:
    """The weights with some replaced, those given as None left out."""
    merged = {**weights, **changes}
    return {name: weight for name, weight in merged.items() if weight is not None}


def eye_like(weight: Tensor) -> Tensor:
    """The identity in the form of a weight."""
    return torch.eye(len(weight), dtype=weight.dtype)
