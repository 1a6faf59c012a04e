"""The multi-head layer: projections, the split into heads, and the way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention.core import widen
from ..registry import mutant
from .layer import Answer, Weights, eye_like, join, multihead, project, renamed, split


@mutant(
    "heads are split by view, without a transpose",
    source="reczoo/FuxiCTR#30",
    killed_by="self_attention_commutes_with_permutation",
    contract="multihead",
    bug="D01",
)
def split_without_transpose(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def view(x: Tensor, heads: int) -> Tensor:
        return x.reshape(x.shape[0], heads, x.shape[1], x.shape[2] // heads)

    return multihead(query, key, value, weights, **options, split=view)


@mutant(
    "the output of heads is merged without a transpose",
    source="jsbaan/transformer-from-scratch#6",
    killed_by="heads_touch_only_their_slice",
    contract="multihead",
    bug="D02",
)
def merge_without_transpose(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def view(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])

    return multihead(query, key, value, weights, **options, join=view)


@mutant(
    "the keys alone are split without a transpose",
    source="onnx/onnx#7118",
    killed_by="layer_equals_its_kernel",
    contract="multihead",
    bug="D04",
)
def keys_split_without_transpose(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    calls: list[int] = []

    def second(x: Tensor, heads: int) -> Tensor:
        calls.append(1)
        return x.reshape(x.shape[0], heads, x.shape[1], -1) if len(calls) == 2 and x.numel() else split(x, heads)

    return multihead(query, key, value, weights, **options, split=second)


@mutant(
    "batch and heads are swapped on the way back",
    source="gazelle93/Transformer-Various-Positional-Encoding#1",
    killed_by="layer_equals_its_kernel",
    contract="multihead",
    bug="D03",
)
def batch_and_heads_swapped(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def swapped(x: Tensor) -> Tensor:
        return join(x.transpose(0, 1).reshape(x.shape))

    return multihead(query, key, value, weights, **options, join=swapped)


@mutant(
    "features are split as (d h), not (h d)",
    source="teaching code",
    killed_by="heads_touch_only_their_slice",
    contract="multihead",
    bug="D33",
)
def features_before_heads(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def interleaved(x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (x.shape[-1] // heads, heads)).permute(0, 3, 1, 2)

    return multihead(query, key, value, weights, **options, split=interleaved)


@mutant(
    "features are split as (d h) and merged so too",
    source="teaching code",
    killed_by="permuted_heads_of_the_layer_change_nothing",
    contract="multihead",
    bug="D33",
)
def features_before_heads_both_ways(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def interleaved(x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (x.shape[-1] // heads, heads)).permute(0, 3, 1, 2)

    return multihead(query, key, value, weights, **options, split=interleaved, join=lambda x: x.permute(0, 2, 3, 1).flatten(2))


@mutant(
    "number of heads and size of a head are exchanged",
    source="teaching code",
    killed_by="layer_equals_its_kernel",
    contract="multihead",
)
def heads_and_size_exchanged(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    heads, size = options["num_heads"], query.shape[-1] // options["num_heads"]
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim > 2 and mask.shape[-3] != 1:
        return multihead(query, key, value, weights, **options)
    out, weight = multihead(query, key, value, weights, **{**options, "num_heads": size or heads})
    return out, None if weight is None else weight.mean(1, keepdim=True).expand(-1, heads, -1, -1).clone()


@mutant(
    "the projection of the first head serves all heads",
    source="MarcoMeter/episodic-transformer-memory-ppo#22",
    killed_by="heads_touch_only_their_slice",
    contract="multihead",
    bug="D08",
)
def one_projection_for_all_heads(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    size = query.shape[-1] // options["num_heads"]

    def shared(x: Tensor, weights: Weights, name: str) -> Tensor:
        if name == "o":
            return project(x, weights, name)
        return project(x, weights, name)[..., :size].repeat(1, 1, options["num_heads"])

    return multihead(query, key, value, weights, **options, project=shared)


@mutant(
    "each head projects its own slice of the input with the block of the first",
    source="MarcoMeter/episodic-transformer-memory-ppo#22",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
    bug="D08",
)
def split_before_projecting(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    heads = options["num_heads"]
    size = query.shape[-1] // heads
    blocks = {f"w_{name}": torch.block_diag(*[weights[f"w_{name}"][:size, :size]] * heads) for name in "qkv"}
    return multihead(query, key, value, {**weights, **blocks}, **options)


@mutant(
    "scale from the model dimension, not the head's",
    source="karpathy/ng-video-lecture#6",
    killed_by="layer_equals_its_kernel",
    contract="multihead",
    bug="D09",
)
def scale_of_the_model(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, weights, **options, default_scale=lambda q: max(query.shape[-1], 1) ** -0.5)


@mutant(
    "the query is scaled and the scores again",
    source="teaching code",
    killed_by="layer_equals_its_kernel",
    contract="multihead",
    bug="G12",
)
def scaled_twice(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, weights, **options, default_scale=lambda q: 1 / max(q.shape[-1], 1))


@mutant("the layer does not scale", source="teaching code", killed_by="layer_equals_its_kernel", contract="multihead")
def not_scaled(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, weights, **options, default_scale=lambda q: 1.0)


def without(*names: str) -> Any:
    """A layer that forgets these weights."""

    def layer(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
        return multihead(query, key, value, renamed(weights, **dict.fromkeys(names)), **options)

    return layer


@mutant(
    "all biases are forgotten",
    source="teaching code",
    killed_by="zero_output_projection_returns_the_bias",
    contract="multihead",
)
def no_biases(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return without("b_q", "b_k", "b_v", "b_o")(query, key, value, weights, **options)


@mutant(
    "the bias of the query is forgotten",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def no_query_bias(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return without("b_q")(query, key, value, weights, **options)


@mutant(
    "the bias of the value is forgotten",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def no_value_bias(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return without("b_v")(query, key, value, weights, **options)


@mutant(
    "the bias of the output is added before the output projection",
    source="teaching code",
    killed_by="zero_output_projection_returns_the_bias",
    contract="multihead",
)
def output_bias_too_early(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def early(x: Tensor, weights: Weights, name: str) -> Tensor:
        bias = weights.get("b_o")
        if name != "o" or bias is None:
            return project(x, weights, name)
        return project(x + bias.to(x.dtype), renamed(weights, b_o=None), "o")

    return multihead(query, key, value, weights, **options, project=early)


@mutant(
    "the output projection is forgotten",
    source="teaching code",
    killed_by="zero_output_projection_returns_the_bias",
    contract="multihead",
)
def no_output_projection(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, {**weights, "w_o": eye_like(weights["w_o"])}, **options)


@mutant(
    "keys are projected with the weights of the query",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def query_weights_for_keys(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, renamed(weights, w_k=weights["w_q"], b_k=weights.get("b_q")), **options)


@mutant(
    "fused weights are cut in the order q, v, k",
    source="vllm-project/vllm#13686",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
    bug="D07",
)
def key_and_value_weights_exchanged(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    changed = renamed(weights, w_k=weights["w_v"], w_v=weights["w_k"], b_k=weights.get("b_v"), b_v=weights.get("b_k"))
    return multihead(query, key, value, changed, **options)


@mutant(
    "fused weights are cut head by head: (h, 3, d) instead of (3, h, d)",
    source="NVIDIA-NeMo/RL#2802",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
    bug="D07",
)
def fused_weights_cut_by_head(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    heads = options["num_heads"]
    fused = torch.cat([weights["w_q"], weights["w_k"], weights["w_v"]])  # (3E, E)
    q, k, v = fused.unflatten(0, (heads, 3, query.shape[-1] // heads)).unbind(1)
    cut = {"w_q": q.flatten(0, 1), "w_k": k.flatten(0, 1), "w_v": v.flatten(0, 1)}
    return multihead(query, key, value, {**weights, **cut}, **options)


@mutant(
    "projections multiply by W instead of its transpose",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def weights_not_transposed(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    turned = {name: weight.mT if weight.ndim == 2 else weight for name, weight in renamed(weights).items()}
    return multihead(query, key, value, turned, **options)


@mutant(
    "the output projection alone multiplies by W instead of its transpose",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def output_weights_not_transposed(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, {**weights, "w_o": weights["w_o"].mT}, **options)


@mutant(
    "cross-attention exchanges keys and values",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
    bug="G11",
)
def keys_and_values_exchanged(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, value, key, weights, **options)


@mutant(
    "the values are computed from the keys",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
    bug="G11",
)
def values_from_keys(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, key, weights, **options)


@mutant(
    "with as many queries as keys, keys come from the query: self-attention in place of cross-attention",
    source="microsoft/onnxruntime#16721",
    killed_by="layer_equals_its_kernel",
    contract="multihead",
    bug="G09",
)
def self_instead_of_cross(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, query if query.shape == key.shape else key, value, weights, **options)


@mutant(
    "attention runs over the batch where B = L = S: batch_first is confused",
    source="rish-16/tokenlearner-pytorch#1",
    killed_by="batch_elements_are_independent",
    contract="multihead",
    bug="D05",
)
def over_the_batch(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if not query.shape[0] == query.shape[1] == key.shape[1]:
        return multihead(query, key, value, weights, **options)
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    out, weight = multihead(query, key, value, weights, **options)
    return out.transpose(0, 1), weight


@mutant(
    "the query is added: a residual connection inside the layer",
    source="teaching code",
    killed_by="zero_output_projection_returns_the_bias",
    contract="multihead",
)
def residual_added(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    return out + query, weight


@mutant(
    "positions are added to query and key inside the layer",
    source="teaching code",
    killed_by="self_attention_commutes_with_permutation",
    contract="multihead",
)
def positions_added(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    query, key = (x + (0.1 * torch.arange(x.shape[1])[:, None]).to(x.dtype) for x in (query, key))
    return multihead(query, key, value, weights, **options)


@mutant(
    "self-attention packs its projections, and cuts queries and keys in the wrong order",
    source="teaching code",
    killed_by="self_attention_is_inside_the_bound",
    contract="multihead",
)
def packed_in_the_wrong_order(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if query is key:
        weights = renamed(weights, w_q=weights["w_k"], w_k=weights["w_q"], b_q=weights.get("b_k"), b_k=weights.get("b_q"))
    return multihead(query, key, value, weights, **options)


@mutant(
    "where key and value are one array their projections are packed, and share the bias of the keys",
    source="teaching code",
    killed_by="self_attention_is_inside_the_bound",
    contract="multihead",
)
def packed_with_one_bias(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if key is value and query is not key and "b_k" in weights:
        weights = renamed(weights, b_v=weights["b_k"])
    return multihead(query, key, value, weights, **options)


@mutant(
    "where query and key are one array the values are taken from it, too",
    source="teaching code",
    killed_by="self_attention_is_inside_the_bound",
    contract="multihead",
)
def taken_for_self_attention(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, query if query is key else value, weights, **options)


@mutant(
    "half precision comes back as float32",
    source="teaching code",
    killed_by="layer_output_has_the_right_form",
    contract="multihead",
)
def half_comes_back_float32(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    wide = {name: widen(weight) for name, weight in weights.items()}
    return multihead(widen(query), widen(key), widen(value), wide, **options)
