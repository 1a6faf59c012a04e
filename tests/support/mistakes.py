"""A small attention and a small layer in NumPy, and for every property of them one mistake that it refutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

Array = Any


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    attn_mask: Array = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softmax: Callable[[Array], Array] | None = None,
    diagonal: int = 0,
    fill: float = -np.inf,
    power: float = 0.5,
    see: Callable[[Array], Array] = lambda seen: seen,
    bias: Callable[[Array], Array] = lambda bias: bias,
    repeat: Callable[..., Array] = np.repeat,
    empty: float = 0.0,
) -> Array:
    """A right attention in NumPy as long as none of the last arguments is given."""
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[1] % max(k.shape[1], 1):
        raise ValueError("shapes do not fit")
    if q.shape[1] != k.shape[1] and not enable_gqa:
        raise ValueError("heads differ")
    kind = q.dtype
    q, k, v = (x.astype(np.float64) if x.dtype == np.float16 else x for x in (q, k, v))
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = repeat(k, group, axis=1), repeat(v, group, axis=1)
    seen = np.ones((*q.shape[:3], k.shape[2]), dtype=bool)
    if is_causal:
        seen = seen & np.tri(*seen.shape[2:], k=diagonal, dtype=bool)
    added: Array = np.zeros(())
    if attn_mask is not None:
        seen = seen & see(attn_mask if attn_mask.dtype == bool else attn_mask != -np.inf)
        added = np.zeros(()) if attn_mask.dtype == bool else bias(np.where(attn_mask == -np.inf, 0, attn_mask))
    with np.errstate(all="ignore"):
        logits = q @ k.swapaxes(-1, -2) * (max(q.shape[3], 1) ** -power if scale is None else scale) + added
        logits = np.where(seen, logits, fill)
        weights = (softmax or plain_softmax)(logits.astype(q.dtype))
        weights = np.where(seen if fill == -np.inf else True, weights, 0)
        out = weights @ np.where(np.isfinite(v) | seen.any(axis=2)[..., None], v, 0)
        return np.where(seen.any(axis=-1, keepdims=True) | (fill != -np.inf), out, empty).astype(kind)


def plain_softmax(logits: Array) -> Array:
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(top == -np.inf, 0, top))
    return weights / weights.sum(axis=-1, keepdims=True)


FACTS: dict[str, Any] = {"framework": "numpy", "masked_nan": "contained", "arithmetic": {"float32": "same", "float64": "same"}}
OPTIONS = ("attn_mask", "is_causal", "scale", "enable_gqa")


def changed(before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None, **wrong: Any) -> Any:
    """An attention whose arguments or answer are changed: before(q, k, v, options), after(out, q, k, v)."""

    def attention(
        q: Array,
        k: Array,
        v: Array,
        *,
        attn_mask: Array = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Array:
        options: dict[str, Any] = dict(zip(OPTIONS, (attn_mask, is_causal, scale, enable_gqa), strict=True))
        new = before(q, k, v, options) if before else (q, k, v)
        out = attend(*new, **options, **wrong)
        return after(out, q, k, v) if after else out

    return attention


def mean_of_values(out: Array, q: Array, k: Array, v: Array) -> Array:
    v = np.repeat(v, q.shape[1] // max(k.shape[1], 1), axis=1)
    return np.broadcast_to(v.sum(axis=2, keepdims=True) / max(v.shape[2], 1), out.shape).astype(out.dtype)


def tilted(logits: Array) -> Array:
    """A bias of the position; one that grew evenly would merge from chunks."""
    return plain_softmax(logits + np.sin(np.arange(logits.shape[-1])))


def one_more(logits: Array) -> Array:
    """exp(s) / (1 + Σ exp(s)): as if there were one more key, of logit 0 and value 0."""
    powers = np.exp(logits)
    return powers / (1 + powers.sum(axis=-1, keepdims=True))


def axis_factor(axis: int) -> Callable[..., Array]:
    """Every index along an axis is multiplied by a number of its own."""

    def after(out: Array, q: Array, k: Array, v: Array) -> Array:
        factor = 1 + 0.01 * np.arange(out.shape[axis]).reshape([-1] + [1] * (3 - axis))
        return (out * factor).astype(out.dtype)

    return after


def mixed_along(axis: int) -> Callable[..., Array]:
    return lambda out, q, k, v: (out + out.mean(axis=axis, keepdims=True) * 2.0**-8).astype(out.dtype) if out.size else out


def option(name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """An option of the call, replaced where it is given."""

    def before(q: Array, k: Array, v: Array, options: dict[str, Any]) -> Any:
        if options[name] is not None:
            options[name] = change(options[name])
        return q, k, v

    return before


def drop_causal_beside_a_mask(q: Array, k: Array, v: Array, options: dict[str, Any]) -> Any:
    options["is_causal"] = options["is_causal"] and options["attn_mask"] is None
    return q, k, v


def no_scale_beside_a_mask(q: Array, k: Array, v: Array, options: dict[str, Any]) -> Any:
    return (q, k, v) if options["attn_mask"] is None else (q * 1.5, k, v)


def doubled_in_place(q: Array, k: Array, v: Array, options: dict[str, Any]) -> Any:
    q += 1
    return q, k, v


def answer_in_the_query(out: Array, q: Array, k: Array, v: Array) -> Array:
    if q.shape != out.shape or not q.flags.writeable:
        return out
    q[...] = out
    return q


def counting() -> Callable[..., Array]:
    calls: list[int] = []

    def after(out: Array, q: Array, k: Array, v: Array) -> Array:
        calls.append(0)
        return out * (1 + 2.0**-8 * (len(calls) % 7))

    return after


def one_memory_for_all_answers() -> Callable[..., Array]:
    kept: dict[Any, Array] = {}

    def after(out: Array, q: Array, k: Array, v: Array) -> Array:
        memory = kept.setdefault((out.shape, out.dtype), np.empty_like(out))
        memory[...] = out
        return memory

    return after


def features_in_memory_order(q: Array, k: Array, v: Array, options: dict[str, Any]) -> Any:
    return q if q.flags.c_contiguous else q[..., ::-1], k, v


def toward_zero(out: Array, q: Array, k: Array, v: Array) -> Array:
    return np.nextafter(out, np.zeros((), dtype=out.dtype))


def is_bool(mask: Array) -> bool:
    return mask.dtype == bool


def scaled(out: Array, q: Array, k: Array, v: Array) -> Array:
    return (out * 1.01).astype(out.dtype)


MISTAKES: dict[str, Any] = {
    "rows_sum_to_one": changed(after=scaled),
    "weights_are_not_negative": changed(softmax=lambda s: 2 * plain_softmax(s) - 1 / s.shape[-1]),
    "shifted_logits_change_nothing": changed(softmax=one_more),
    "shifted_bias_changes_nothing": changed(softmax=one_more),
    "larger_logit_larger_weight": changed(softmax=lambda s: plain_softmax(np.where(s == -np.inf, s, -s))),
    "one_key_takes_all": changed(softmax=lambda s: plain_softmax(np.where(s == -np.inf, s, np.tanh(s)))),
    "equal_logits_share_equally": changed(softmax=tilted),
    "huge_scale_picks_the_maximum": changed(softmax=lambda s: plain_softmax(np.where(s == -np.inf, s, np.clip(s, -9, 9)))),
    "a_single_key_gives_its_value": changed(after=lambda out, q, k, v: np.nextafter(out, 0 * out)),
    "zero_scale_averages": changed(before=option("scale", lambda scale: scale or None)),
    "output_stays_in_the_hull_of_values": changed(after=lambda out, q, k, v: out * 2),
    "constant_values_are_returned": changed(after=lambda out, q, k, v: out + 1),
    "output_is_linear_in_values": changed(after=lambda out, q, k, v: out + out * out),
    "shifted_values_shift_the_output": changed(after=scaled),
    "flipped_value_signs_flip_the_output": changed(after=lambda out, q, k, v: out + np.abs(out) / 8),
    "permuted_value_columns_permute_the_output": changed(after=axis_factor(3)),
    "masked_keys_are_deleted": changed(fill=-5.0),
    "masked_garbage_changes_nothing": changed(fill=-5.0),
    "masked_nan_is_contained": changed(after=lambda out, q, k, v: out + 0 * mean_of_values(out, q, k, v)),
    "bool_mask_equals_minus_infinity": changed(
        before=option("attn_mask", lambda mask: np.where(mask, 0.0, -3.0) if is_bool(mask) else mask)
    ),
    "zero_queries_read_the_additive_mask": changed(before=option("attn_mask", lambda mask: mask if is_bool(mask) else mask / 2)),
    "neutral_mask_changes_nothing": changed(before=no_scale_beside_a_mask),
    "masks_compose": changed(before=drop_causal_beside_a_mask),
    "masks_broadcast": changed(before=option("attn_mask", lambda mask: mask if mask.ndim == 4 else None)),
    "masks_stay_with_their_batch_and_head": changed(before=option("attn_mask", lambda mask: mask[:1])),
    "rows_without_keys_follow_the_convention": changed(empty=1.0),
    "future_tokens_are_ignored": changed(diagonal=1),
    "prefix_of_output_is_output_of_prefix": changed(after=lambda out, q, k, v: out * (1 + 0.01 * (out.shape[2] % 5))),
    "causal_frontier_is_exact": changed(diagonal=1),
    "causal_equals_triangular_mask": changed(diagonal=1),
    "permuted_keys_change_nothing": changed(softmax=tilted),
    "permuted_queries_permute_rows": changed(after=axis_factor(2)),
    "batch_elements_are_independent": changed(after=mixed_along(0)),
    "heads_are_independent": changed(after=mixed_along(1)),
    "permuted_batch_permutes_the_output": changed(after=axis_factor(0)),
    "permuted_heads_permute_the_output": changed(after=axis_factor(1)),
    "flipped_feature_signs_change_nothing": changed(before=lambda q, k, v, options: (np.abs(q), k, v)),
    "powers_of_two_move_between_query_and_key": changed(before=lambda q, k, v, options: (q + 1, k, v)),
    "orthogonal_basis_changes_nothing": changed(before=lambda q, k, v, options: (np.abs(q), k, v)),
    "uniform_weights_decode_the_mask": changed(see=lambda seen: np.roll(seen, 1, axis=-1)),
    "grouped_heads_equal_repeated_heads": changed(repeat=lambda x, n, axis: np.concatenate([x] * n, axis=axis)),
    "head_concatenation_preserves_shape": changed(after=lambda out, q, k, v: np.roll(out, 1, axis=1)),
    "scaling_reduces_variance": changed(power=0.4),
    "default_scale_is_one_over_sqrt_dim": changed(power=0.4),
    "scale_folds_into_the_query": changed(before=option("scale", lambda scale: min(scale, 1.0))),
    "chunks_merge_to_the_whole": changed(softmax=tilted),
    "duplicated_keys_change_nothing": changed(softmax=one_more),
    "key_at_minus_infinity_changes_nothing": changed(fill=-5.0),
    "output_is_inside_the_bound": changed(after=lambda out, q, k, v: (out * (1 + 2.0**-20)).astype(out.dtype)),
    "degenerate_output_is_inside_the_bound": changed(after=scaled),
    "rounding_is_not_biased": changed(after=toward_zero),
    "even_and_odd_keys_err_alike": changed(softmax=lambda s: plain_softmax(s + 1e-6 * (np.arange(s.shape[-1]) % 2).astype(s.dtype))),
    "small_weights_show_the_scale": changed(softmax=lambda s: plain_softmax(s * s.dtype.type(1 + 2e-6))),
    "nan_query_is_not_hidden": changed(after=lambda out, q, k, v: np.nan_to_num(out)),
    "nan_key_is_not_hidden": changed(after=lambda out, q, k, v: np.nan_to_num(out)),
    "nan_value_is_not_hidden": changed(after=lambda out, q, k, v: np.nan_to_num(out)),
    "finite_results_do_not_overflow": changed(softmax=lambda s: np.exp(s) / np.exp(s).sum(axis=-1, keepdims=True)),
    "inputs_are_unchanged": changed(before=doubled_in_place),
    "outputs_alias_no_input": changed(after=answer_in_the_query),
    "same_call_same_bits": changed(after=counting()),
    "process_is_left_as_it_was": changed(after=lambda out, q, k, v: (np.random.seed(0), out)[1]),
    "calls_between_change_nothing": changed(after=one_memory_for_all_answers()),
    "memory_layout_changes_nothing": changed(before=features_in_memory_order),
    "output_has_the_right_form": changed(after=lambda out, q, k, v: out.astype(np.float32)),
    "bad_shapes_raise": changed(before=lambda q, k, v, options: (q[..., : k.shape[3]], k[..., : q.shape[3]], v)),
    "missing_values_raise": changed(before=lambda q, k, v, options: (q, k[:, :, : v.shape[2]], v)),
}


def layer(wrong: Callable[..., Any]) -> Any:
    """A layer with one mistake: wrong(x), where x holds the arguments."""

    def multihead(
        query: Array,
        key: Array,
        value: Array,
        weights: Mapping[str, Array],
        *,
        num_heads: int,
        attn_mask: Array = None,
        key_padding_mask: Array = None,
        is_causal: bool = False,
        need_weights: bool = True,
    ) -> Any:
        x = {
            "query": query,
            "key": key,
            "value": value,
            "weights": dict(weights),
            "num_heads": num_heads,
            "attn_mask": attn_mask,
            "key_padding_mask": key_padding_mask,
            "is_causal": is_causal,
            "need_weights": need_weights,
        }
        return wrong(x)

    return multihead


def right(x: dict[str, Any], **changes: Any) -> Any:
    """The right answer to a layer call, with some arguments changed: (out, weights)."""
    x = {**x, **changes}
    w, heads = x["weights"], x["num_heads"]

    def project(y: Array, name: str) -> Array:
        b = w.get(f"b_{name}")
        return y @ w[f"w_{name}"].T + (0 if b is None else b)

    def split(y: Array) -> Array:
        return y.reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)

    q, k, v = (split(project(x[long], short)) for long, short in (("query", "q"), ("key", "k"), ("value", "v")))
    mask = x["attn_mask"]
    if x["key_padding_mask"] is not None:
        kept = ~x["key_padding_mask"][:, None, None, :]
        mask = kept if mask is None else mask & kept if is_bool(mask) else np.where(kept, mask, -np.inf).astype(mask.dtype)
    attention = partial(attend, q, k, attn_mask=mask, is_causal=x["is_causal"])
    identity = np.broadcast_to(np.eye(k.shape[2], dtype=q.dtype), (*k.shape[:3], k.shape[2]))
    out = project(attention(v).swapaxes(1, 2).reshape(*q.shape[:1], q.shape[2], -1), "o").astype(x["query"].dtype)
    return out, attention(identity) if x["need_weights"] else None


def times(x: dict[str, Any], factor: Any, **changes: Any) -> Any:
    out, weights = right(x, **changes)
    return (out * factor).astype(out.dtype), weights


def plus(x: dict[str, Any], added: Any) -> Any:
    out, weights = right(x)
    return (out + added).astype(out.dtype), weights


def empty_rows_are_nan_with_weights(x: dict[str, Any]) -> Any:
    out, weights = right(x)
    if weights is not None:
        out[(weights.sum(axis=-1) == 0).any(axis=1)] = np.nan
    return out, weights


def no_padding_beside_a_mask(x: dict[str, Any]) -> Any:
    return right(x, key_padding_mask=x["key_padding_mask"] if x["attn_mask"] is None else None)


def query_in_place(x: dict[str, Any]) -> Any:
    x["query"] += 1
    return right(x)


def heads_of_different_size(x: dict[str, Any]) -> Any:
    rows = np.repeat(1 + 0.1 * np.arange(x["num_heads"]), x["query"].shape[-1] // x["num_heads"])
    return right(x, weights=x["weights"] | {"w_o": x["weights"]["w_o"] * rows.astype(x["query"].dtype)})


def averaged_weights(x: dict[str, Any]) -> Any:
    out, weights = right(x)
    return out, None if weights is None else np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)


def positions(x: dict[str, Any]) -> Any:
    place = (0.1 * np.arange(x["query"].shape[1])[:, None]).astype(x["query"].dtype)
    return right(x, query=x["query"] * (1 + place))


LAYER_MISTAKES: dict[str, Any] = {
    "layer_is_inside_the_bound": lambda x: times(x, 1.01),
    "self_attention_is_inside_the_bound": lambda x: times(x, 1.01 if x["query"] is x["key"] else 1),
    "layer_equals_its_kernel": lambda x: times(x, 1 + 2.0**-20),
    "weights_reproduce_the_output": averaged_weights,
    "need_weights_changes_nothing": lambda x: times(x, 1.01 if x["need_weights"] else 1),
    "rows_without_keys_do_not_depend_on_need_weights": empty_rows_are_nan_with_weights,
    "padding_mask_deletes_keys": lambda x: right(x, key_padding_mask=None),
    "padding_composes_with_the_mask": no_padding_beside_a_mask,
    "heads_touch_only_their_slice": lambda x: plus(x, right(x)[0].mean(axis=-1, keepdims=True) / 8),
    "zero_output_projection_returns_the_bias": lambda x: plus(x, x["query"]),
    "permuted_heads_of_the_layer_change_nothing": heads_of_different_size,
    "self_attention_commutes_with_permutation": positions,
    "layer_ignores_future_tokens": lambda x: right(x, is_causal=False),
    "layer_arguments_are_unchanged": query_in_place,
    "layer_output_has_the_right_form": lambda x: (right(x)[0].astype(np.float32), right(x)[1]),
}
