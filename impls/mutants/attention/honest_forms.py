"""More attentions that are correct: loops, other shapes and layouts, other precision honestly declared, other layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..multihead.layer import Answer, Weights, multihead, project, renamed
from ..registry import WIDE, honest
from . import feature_core
from .core import INF, Step, attention, both, check, default_scale, frontier, hide, mix, read_mask, scores, softmax, widen

LEAKS = {"masked_nan": "leaks"}


# --- loops, shapes and layouts ------------------------------------------------------------------------------------


def cut(mask: Tensor | None, axis: int, index: int) -> Tensor | None:
    """The part of a mask that belongs to one index of an axis (-3 heads, -2 queries)."""
    if mask is None or mask.ndim < -axis or mask.shape[axis] == 1:
        return mask
    return mask.narrow(axis, index, 1)


@honest("one head at a time")
def loop_over_heads(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    check(q, k, v, attn_mask, options.get("enable_gqa", False))
    group = q.shape[1] // max(k.shape[1], 1)
    if not q.shape[1]:
        return attention(q, k, v, attn_mask=attn_mask, **options)
    parts = []
    for h in range(q.shape[1]):
        one = slice(h // group, h // group + 1)
        parts.append(attention(q[:, h : h + 1], k[:, one], v[:, one], attn_mask=cut(attn_mask, -3, h), **options))
    return torch.cat(parts, 1)


# In halves the gradients of the keys are added row by row in the half type: no longer the declared arithmetic.
@honest("one query at a time", supports={"gradients": False})
def loop_over_queries(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    check(q, k, v, attn_mask, options.get("enable_gqa", False))
    causal = options.pop("is_causal", False)
    if not q.shape[2]:
        return attention(q, k, v, attn_mask=attn_mask, **options)
    rows = []
    for i in range(q.shape[2]):
        past = torch.arange(k.shape[2]) <= (i if causal else k.shape[2])

        def seen(visible: Tensor | None, _: Tensor | None, past: Tensor = past) -> Tensor | None:
            return both(visible, past)

        rows.append(attention(q[:, :, i : i + 1], k, v, attn_mask=cut(attn_mask, -2, i), **options, both=seen))
    return torch.cat(rows, 2)


@honest("one row at a time, and hidden keys are really left out")
def hidden_keys_left_out(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def gathered(logit: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        if visible is None:
            return mix(softmax(logit, None), value, None)
        seen = visible.expand(logit.shape)
        out = value.new_zeros((*logit.shape[:-1], value.shape[-1]))
        for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in logit.shape[:3])).tolist():
            keep = seen[b, h, i]
            out[b, h, i] = torch.softmax(logit[b, h, i, keep], -1) @ value[b, h, keep]
        return out

    return attention(q, k, v, **options, reduce=gathered)


@honest("inputs are copied to contiguous memory first")
def contiguous_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q.contiguous(), k.contiguous(), v.contiguous(), **options)


@honest("key heads are expanded, not copied")
def heads_expanded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def expanded(x: Tensor, heads: int) -> Tensor:
        if x.shape[1] == heads:
            return x
        batch, kv_heads, keys, dim = x.shape
        return x[:, :, None].expand(batch, kv_heads, heads // kv_heads, keys, dim).reshape(batch, heads, keys, dim)

    return attention(q, k, v, **options, repeat_heads=expanded)


@honest("query heads are grouped in a dimension of their own: (B, Hkv, G, L, D)")
def heads_grouped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    kv_heads = k.shape[1]

    def grouped(query: Tensor, key: Tensor, scale: float) -> Tensor:
        if not kv_heads:
            return query @ key.mT
        split = query.unflatten(1, (kv_heads, query.shape[1] // kv_heads))
        return (torch.einsum("bkgld,bksd->bkgls", split, key) * scale).flatten(1, 2)

    def mixed(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        group = weight.shape[1] // max(value.shape[1], 1)
        return mix(weight, value.repeat_interleave(group, 1) if group > 1 else value, visible)

    return attention(q, k, v, **options, repeat_heads=lambda x, heads: x, scores=grouped, mix=mixed)


@honest("the output is a view of memory laid out as (B, L, H, Dv)")
def output_laid_out_by_length(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options).transpose(1, 2).contiguous().transpose(1, 2)


@honest("F.scaled_dot_product_attention, math, with mask and causality combined beforehand", source="torch", supports=LEAKS)
def torch_math(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask, scale = options.get("attn_mask"), options.get("scale")
    check(q, k, v, mask, options.get("enable_gqa", False))
    if not q.numel() or not k.numel() or not v.numel():
        return attention(q, k, v, **options)
    visible, bias = read_mask(mask, ())
    visible = both(visible, frontier(q.shape[2], k.shape[2]) if options.get("is_causal") else None)
    if bias is not None:
        mask = (bias if visible is None else torch.where(visible, bias, -INF)).to(q.dtype)
    else:
        mask = visible
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=options.get("enable_gqa", False))


# --- other precision, honestly declared ---------------------------------------------------------------------------


@honest("float64 inside, whatever the input")
def float64_inside(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
        visible, bias = read_mask(attn_mask, shape)
        return visible, None if bias is None else bias.double()

    return attention(q, k, v, **options, widen=lambda x: x.double(), read_mask=read)


@honest(
    "as fused kernels do: weights are rounded to the input's type before they meet the values",
    source="Dao-AILab/flash-attention",
    supports={"arithmetic": {**WIDE, "float16": "fused", "bfloat16": "fused"}},
)
def weights_rounded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rounded(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        return mix(weight.to(q.dtype).to(weight.dtype), value, visible)

    return attention(q, k, v, **options, mix=rounded)


@honest(
    "as eager code does: scores and weights are stored in the input's type",
    source="huggingface/transformers",
    supports={"arithmetic": {**WIDE, "float16": "eager", "bfloat16": "eager"}},
)
def everything_stored(q: Tensor, k: Tensor, v: Tensor, hide: Step = hide, **options: Any) -> Tensor:
    def stored(x: Tensor) -> Tensor:
        return x.to(q.dtype).to(x.dtype)

    def biased(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        return hide(logit if bias is None else stored(logit + bias), visible, None)

    return attention(
        q,
        k,
        v,
        **options,
        scores=lambda query, key, scale: stored(stored(query @ key.mT) * scale),
        hide=biased,
        softmax=lambda logit, visible: stored(softmax(logit, visible)),
    )


@honest(
    "a mask of any kind is added: where a hidden score overflows, inf - inf",
    source="huggingface/transformers",
    supports={"arithmetic": {**WIDE, "float16": "eager", "bfloat16": "eager"}, "gradients": False, **LEAKS},
)
def mask_is_added(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def added(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if bias is None else logit + bias
        return logit if visible is None else logit + torch.zeros(visible.shape, dtype=logit.dtype).masked_fill(~visible, -INF)

    return everything_stored(q, k, v, **options, hide=added)


# --- layers -------------------------------------------------------------------------------------------------------


@honest("the core layer itself", contract="multihead")
def core_layer(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, weights, **options)


@honest("one fused projection of size 3E", contract="multihead", source="torch, nn.MultiheadAttention")
def fused_projection(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    fused = torch.cat([widen(weights[f"w_{name}"]) for name in "qkv"])  # (3E, E)

    def third(x: Tensor, weights: Weights, name: str) -> Tensor:
        if name == "o":
            return project(x, weights, name)
        out, bias = functional.linear(x, fused).chunk(3, -1)["qkv".index(name)], weights.get("b_" + name)
        return out if bias is None else out + widen(bias)

    return multihead(query, key, value, weights, **options, project=third)


@honest("F.linear, which adds the bias inside the product", contract="multihead")
def torch_linear(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
        bias = weights.get("b_" + name)
        return functional.linear(x, widen(weights["w_" + name]), None if bias is None else widen(bias))

    return multihead(query, key, value, weights, **options, project=linear)


@honest("each head has its own slice of the output projection, and the heads are summed", contract="multihead")
def heads_summed(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    heads = options["num_heads"]

    def output(x: Tensor, weights: Weights, name: str) -> Tensor:
        size = x.shape[-1] // heads
        if name != "o":
            return project(x, weights, name)
        out = sum(x[..., h * size : (h + 1) * size] @ widen(weights["w_o"])[:, h * size : (h + 1) * size].mT for h in range(heads))
        bias = weights.get("b_o")
        return torch.as_tensor(out) if bias is None else out + widen(bias)

    return multihead(query, key, value, weights, **options, project=output)


@honest("one head at a time, with its rows of the projections", contract="multihead")
def weights_per_head(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    heads = options["num_heads"]

    def rows(x: Tensor, weights: Weights, name: str) -> Tensor:
        if name == "o":
            return project(x, weights, name)
        size, bias = x.shape[-1] // heads, weights.get("b_" + name)
        parts = [x @ widen(weights["w_" + name])[h * size : (h + 1) * size].mT for h in range(heads)]
        out = torch.cat(parts, -1)
        return out if bias is None else out + widen(bias)

    return multihead(query, key, value, weights, **options, project=rows)


@honest("the bias of the keys is left out: it adds the same to every logit of a row, if all keys have it", contract="multihead")
def no_key_bias(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if options.get("bias_k") is None and not options.get("add_zero_attn"):
        weights = renamed(weights, b_k=None)
    return multihead(query, key, value, weights, **options)


@honest("the scale is folded into the projection of the query, on a copy", contract="multihead")
def scale_in_the_query(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def scaled(x: Tensor, weights: Weights, name: str) -> Tensor:
        out = project(x, weights, name)
        return out * default_scale(out[..., : x.shape[-1] // options["num_heads"]]) if name == "q" else out

    return multihead(query, key, value, weights, **options, project=scaled, scores=lambda q, k, scale: scores(q, k, 1.0))


# ---------------------------------------------------------------- features


@honest(
    "ALiBi with the distance off by a constant: the softmax does not see it",
    source="vllm-project/vllm#945",
    bug="H02",
    supports=feature_core.FACTS,
)
def alibi_off_by_a_constant(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def shifted(slopes: Tensor, queries: int, keys: int) -> Tensor:
        return feature_core.distance_bias(slopes, queries, keys) + slopes[:, None, None]

    step: dict[str, Any] = {} if options.get("return_lse") or options.get("sinks") is not None else {"distance_bias": shifted}
    return feature_core.attention(q, k, v, **options, **step)


@honest(
    "dropout makes up for the dropped weights after the product with V",
    source="Dao-AILab/flash-attention#93",
    bug="H06",
    supports=feature_core.FACTS,
)
def dropout_rescaled_last(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    p = options.get("dropout_p", 0.0)
    if not p or options.get("return_lse"):
        return feature_core.attention(q, k, v, **options)
    kept = feature_core.attention(q, k, v, **options, drop=lambda weight, p: feature_core.drop(weight, p) * (1 - p))
    return (kept.double() / (1 - p)).to(q.dtype)


@honest("windows as two triangles", supports=feature_core.FACTS)
def window_of_two_triangles(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def band(queries: int, keys: int, left: int, right: int) -> Tensor:
        ones = torch.ones(queries, keys, dtype=torch.bool)
        seen = ones if right < 0 else ones.tril(right)
        return seen if left < 0 else seen.triu(-left)

    return feature_core.attention(q, k, v, **options, window=band)
