"""``torch.nn.TransformerEncoderLayer`` and ``TransformerDecoderLayer`` as the library ships them, with given weights.

``encoder_train``      training mode without dropout: the Python path
``encoder_eval_slow``  eval mode with gradients enabled, which keeps the library off its fast path
``encoder_eval_fast``  eval mode without gradients: one native call for the whole layer where the library finds its conditions met,
                       among others an even number of heads
``encoder_nested``     nn.TransformerEncoder of one layer in eval mode: with a padding mask that begins with tokens and ends with padding,
                       and no other mask, the padding is cut off (nested tensors) and comes back as zeros
``decoder_train``, ``decoder_eval``

Only documented conventions are translated here: a bool mask of the library is True where attention is *not* allowed, and a mask has
rank 2, or 3 with batch and heads in one dimension.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from . import torch_mha
from .contract import check_block, supports
from .transformer_numpy import attention_weights

FACTS: dict[str, Any] = {
    "framework": "torch",
    "devices": ["cpu", "cuda"],
    "dtypes": ["float64", "float32", "float16", "bfloat16"],
    "arithmetic": {"float64": "same", "float32": "same", "float16": "eager", "bfloat16": "eager"},
}
Weights = Mapping[str, Tensor]


def encoder_call(x: Tensor, weights: Weights, num_heads: int, training: bool, stacked: bool = False, **asked: Any) -> Tensor:
    """One call of nn.TransformerEncoderLayer, or of nn.TransformerEncoder with it as its only layer."""
    check_block(x, None, weights, num_heads, asked.get("key_padding_mask"))
    single = nn.TransformerEncoderLayer(**form(x, weights, num_heads, asked))
    own = parameters(weights, {"": "self_attn."}, 2, "layers.0." if stacked else "")
    masks = torch_mha.library_masks(x, x, num_heads, asked.get("attn_mask"), asked.get("key_padding_mask"), asked.get("is_causal", False))
    named = {
        "mask" if stacked else "src_mask": masks["attn_mask"],
        "src_key_padding_mask": masks["key_padding_mask"],
        "is_causal": masks["is_causal"],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # nested tensors announce that they are a prototype, or not used
        layer = nn.TransformerEncoder(single, 1, enable_nested_tensor=True) if stacked else single
        out: Tensor = functional_call(layer.train(training), own, (x,), named)
    return out


def decoder_call(x: Tensor, memory: Tensor, weights: Weights, num_heads: int, training: bool, **asked: Any) -> Tensor:
    """One call of nn.TransformerDecoderLayer."""
    check_block(x, memory, weights, num_heads, asked.get("key_padding_mask"), asked.get("memory_key_padding_mask"))
    layer = nn.TransformerDecoderLayer(**form(x, weights, num_heads, asked))
    own = parameters(weights, {"": "self_attn.", "cross_": "multihead_attn."}, 3)
    masks = torch_mha.library_masks(x, x, num_heads, asked.get("attn_mask"), asked.get("key_padding_mask"), asked.get("is_causal", False))
    memory_masks = torch_mha.library_masks(x, memory, num_heads, asked.get("memory_mask"), asked.get("memory_key_padding_mask"), False)
    named = {
        "tgt_mask": masks["attn_mask"],
        "tgt_key_padding_mask": masks["key_padding_mask"],
        "tgt_is_causal": masks["is_causal"],
        "memory_mask": memory_masks["attn_mask"],
        "memory_key_padding_mask": memory_masks["key_padding_mask"],
    }
    out: Tensor = functional_call(layer.train(training), own, (x, memory), named)
    return out


def form(x: Tensor, weights: Weights, num_heads: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's arguments: sizes and options, without storage for parameters."""
    return {
        "d_model": x.shape[-1],
        "nhead": num_heads,
        "dim_feedforward": weights["w_1"].shape[0],
        "dropout": 0.0,
        "activation": asked.get("activation", "relu"),
        "norm_first": asked.get("norm_first", False),
        "batch_first": True,
        "bias": "b_1" in weights,
        "device": "meta",
    }


def parameters(weights: Weights, attentions: Mapping[str, str], norms: int, before: str = "") -> dict[str, Tensor]:
    """The contract's weights under the library's names."""
    has_bias = "b_1" in weights
    named: dict[str, Tensor] = {"linear1.weight": weights["w_1"], "linear2.weight": weights["w_2"]}
    if has_bias:
        named |= {"linear1.bias": weights["b_1"], "linear2.bias": weights["b_2"]}
    for prefix, module in attentions.items():
        own = torch_mha.parameters(attention_weights(weights, prefix), has_bias)
        named |= {module + name: array for name, array in own.items()}
    for number in range(1, norms + 1):
        named[f"norm{number}.weight"] = weights[f"g_{number}"]
        if has_bias:
            named[f"norm{number}.bias"] = weights[f"beta_{number}"]
    return {before + name: array for name, array in named.items()}


@supports(**FACTS)
def encoder_train(
    x: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Tensor:
    """nn.TransformerEncoderLayer(embed, num_heads, hidden, dropout=0, batch_first=True).train()"""
    return encoder_call(
        x,
        weights,
        num_heads,
        True,
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        is_causal=is_causal,
        norm_first=norm_first,
        activation=activation,
    )


@supports(**FACTS)
def encoder_eval_slow(
    x: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Tensor:
    """The same .eval(), with tokens that require a gradient, as in fine-tuning: no fast path"""
    with torch.enable_grad():
        return encoder_call(
            x.detach().requires_grad_(),
            weights,
            num_heads,
            False,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            is_causal=is_causal,
            norm_first=norm_first,
            activation=activation,
        ).detach()


@supports(**FACTS)
@torch.no_grad()
def encoder_eval_fast(
    x: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Tensor:
    """The same .eval() under no_grad: torch._transformer_encoder_layer_fwd where the library chooses it"""
    return encoder_call(
        x,
        weights,
        num_heads,
        False,
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        is_causal=is_causal,
        norm_first=norm_first,
        activation=activation,
    )


@supports(**FACTS)
@torch.no_grad()
def encoder_nested(
    x: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Tensor:
    """nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval() under no_grad"""
    return encoder_call(
        x,
        weights,
        num_heads,
        False,
        True,
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        is_causal=is_causal,
        norm_first=norm_first,
        activation=activation,
    )


@supports(**FACTS)
def decoder_train(
    x: Tensor,
    memory: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Tensor:
    """nn.TransformerDecoderLayer(embed, num_heads, hidden, dropout=0, batch_first=True).train()"""
    return decoder_call(
        x,
        memory,
        weights,
        num_heads,
        True,
        attn_mask=attn_mask,
        memory_mask=memory_mask,
        key_padding_mask=key_padding_mask,
        memory_key_padding_mask=memory_key_padding_mask,
        is_causal=is_causal,
        norm_first=norm_first,
        activation=activation,
    )


@supports(**FACTS)
@torch.no_grad()
def decoder_eval(
    x: Tensor,
    memory: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Tensor:
    """The same .eval() under no_grad"""
    return decoder_call(
        x,
        memory,
        weights,
        num_heads,
        False,
        attn_mask=attn_mask,
        memory_mask=memory_mask,
        key_padding_mask=key_padding_mask,
        memory_key_padding_mask=memory_key_padding_mask,
        is_causal=is_causal,
        norm_first=norm_first,
        activation=activation,
    )
