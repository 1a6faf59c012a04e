"""The multi-head layer: the key and value that are learned, and those of zeros, which are appended and which every row sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .layer import Answer, Weights, appended, behind, multihead, project


@mutant(
    "where there is a mask, the key that is appended is hidden",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def appended_key_is_masked(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def hidden(mask: Tensor | None, shape: tuple[int, ...], keys: int, value: bool | float) -> Tensor | None:
        return behind(mask, shape, keys, False if value is True else value)

    return multihead(query, key, value, weights, **options, behind=hidden)


@mutant(
    "the hint of causality hides the key that is appended, where no weights are asked for",
    source="torch.nn.functional.multi_head_attention_forward",
    killed_by="need_weights_changes_nothing",
    contract="multihead",
)
def appended_key_is_in_the_future(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    hint = options.get("is_causal") and not options.get("need_weights", True) and options.get("key_padding_mask") is None

    def later(mask: Tensor | None, shape: tuple[int, ...], keys: int, value: bool | float) -> Tensor | None:
        whole = behind(mask, shape, keys, value)
        if whole is None or value is not True:
            return whole
        return whole & torch.ones(shape[2], keys, dtype=torch.bool).tril()

    return multihead(query, key, value, weights, **options, behind=later if hint else behind)


@mutant(
    "the key of zeros is appended, and the last value a second time",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def zero_key_with_the_last_value(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    calls: list[int] = []

    def last(x: Tensor, learned: Tensor | None, zero: bool) -> Tensor:
        calls.append(0)
        out = appended(x, learned, zero)
        return torch.cat([out[:, :-1], out[:, -2:-1]], 1) if zero and len(calls) == 2 else out

    return multihead(query, key, value, weights, **options, appended=last)


@mutant(
    "the key that is learned is appended before the projection, which it then goes through",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def appended_before_the_projection(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if options.get("bias_k") is not None:
        options["bias_k"] = project(options["bias_k"][None], weights, "k")[0].to(query.dtype)
    return multihead(query, key, value, weights, **options)


@mutant(
    "what is appended stands before the keys, and the masks think that it stands behind them",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def appended_in_front(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def first(x: Tensor, learned: Tensor | None, zero: bool) -> Tensor:
        return appended(x, learned, zero).roll((learned is not None) + zero, 1)

    return multihead(query, key, value, weights, **options, appended=first)
