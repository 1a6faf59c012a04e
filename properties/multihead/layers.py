"""Layers: projections around an attention.

head_h = attention(Q W_qᵀ + b_q, K W_kᵀ + b_k, V W_vᵀ + b_v)_h,   out = concat(head_1 … head_H) W_oᵀ + b_o
(Vaswani et al. 2017, 3.2.2; y = x Wᵀ + b as in torch.nn.Linear)
"""

from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.declare import declare
from ..exact.oracle import join_heads
from .trial import LayerRun, LayerTrial

SIZES: dict[str, Any] = {
    "kv_heads": (1, 2, 2, 3, 3, 4, 8),
    "dim": (1, 2, 3, 4, 5, 8, 16),
    "group": 1,
    "value_dim": None,
    "layout": "contiguous",
    "explicit": False,
    "values": "normal",
    "scale": None,
    "zero_sizes": False,
}
SEVERAL_HEADS: dict[str, Any] = SIZES | {"kv_heads": (2, 3, 4, 8)}
DEFINITE = ("bool", "minus_infinity", "bias", "bias_and_minus_infinity")


def posed(t: LayerTrial, run: LayerRun) -> Array:
    """(B, L, 1) bool: the rows that see a key in every head; what other rows give is a convention."""
    return np.asarray(np.all(np.any(t.visible_to(run.inputs), axis=-1), axis=1))[..., None]


def padding(t: LayerTrial) -> Array:
    """(B, S) bool, True = padding: at the end, at the beginning or in between; one key of every sequence stays."""
    at_the_end = t.padding()
    holes = t.noise("holes", at_the_end.shape) < 0
    holes[:, t.choice("kept", holes.shape[1])] = False
    return (at_the_end, at_the_end[:, ::-1], holes)[t.choice("padding", 3)]


def agree(t: LayerTrial, one: LayerRun, other: LayerRun, says: str) -> None:
    """Two layer calls that must give the same, inside both bounds, wherever a row sees a key."""
    t.close(one.out, other.out, one.bound + other.bound, says, posed(t, one))


@declare("|layer − exact| ≤ E, E by composition", contract="multihead", dtypes="all", **SIZES, mask_kind=DEFINITE)
def layer_is_inside_the_bound(t: LayerTrial) -> None:
    """The layer is as near to the exact composition of its projections and its attention as its arithmetic promises."""
    run = t.run_layer()
    t.inside(run, run.bound, "position {row}, feature {column} is off", posed(t, run))


@declare("|self-attention − exact| ≤ E", contract="multihead", **SIZES, mask_kind=DEFINITE)
def self_attention_is_inside_the_bound(t: LayerTrial) -> None:
    """The same where two of query, key and value are one and the same array, or all three: libraries take other, faster paths."""
    x = t.self_attention
    other = t.make_layer(t.case.queries)
    for inputs in (x, x.but(key=other.key, value=other.key), x.but(value=other.value), x.but(key=other.key)):
        run = t.run_layer(inputs)
        t.inside(run, run.bound, "position {row}, feature {column} is off", posed(t, run))


@declare("W = 1, b = 0  ⇒  layer = its kernel", contract="multihead", dtypes="all", **SIZES, mask_kind=DEFINITE)
def layer_equals_its_kernel(t: LayerTrial) -> None:
    """With identity projections nothing is rounded around the attention, and the tight bound of the kernel holds."""
    run = t.run_layer(t.layer.but(weights=t.identity_weights(t.layer.query.shape[-1])))
    kernel = t.kernel_bound(run)
    t.inside(run, kernel, "position {row}, feature {column} is off", posed(t, run))


@declare("W_v = W_o = 1  ⇒  out_h = weights_h · V_h", contract="multihead", needs=("returns_weights",), **SIZES, mask_kind=DEFINITE)
def weights_reproduce_the_output(t: LayerTrial) -> None:
    """The attention weights that the layer returns are those that it used."""
    identity = t.identity_weights(t.layer.query.shape[-1])
    plain = {name: identity[name] for name in ("w_v", "w_o", "b_v", "b_o")}
    run = t.run_layer(t.layer.but(weights=dict(t.layer.weights) | plain))
    if run.weights is None:
        t.fail("no weights were returned (returns_weights = false, if that is intended)")
        return
    nonempty = np.asarray(t.visible_to(run.inputs).any(axis=-1, keepdims=True))
    t.close(run.weights, run.exact.weights, run.weights_bound, "the weight of key {column} in row {row} is off", nonempty)
    value = run.exact.attention.problem.v  # (B, H, S, D): those given, and those appended
    spread = run.weights_bound + 2.0**-53 * (value.shape[2] + 2) * np.abs(run.weights)  # this product, in float64
    allowed = run.bound + join_heads(spread @ np.abs(value))
    t.close(run.out, join_heads(run.weights @ value), allowed, "row {row} is not made of the returned weights", posed(t, run))


@declare(
    "out(need_weights) = out(not need_weights)",
    contract="multihead",
    needs=("need_weights",),
    **SIZES,
    mask_kind=DEFINITE,
    is_causal=(False, True, True),
    masked=3,
)
def need_weights_changes_nothing(t: LayerTrial) -> None:
    """Asking for the weights does not change the output."""
    agree(t, t.run_layer(), t.run_layer(t.layer.but(need_weights=False)), "row {row} depends on need_weights")


@declare(
    "no visible key: out(need_weights) = out(not need_weights)",
    contract="multihead",
    needs=("need_weights", "attn_mask"),
    **SIZES,
    mask=("nothing", "empty_rows"),
    mask_kind=("bool", "minus_infinity"),
)
def rows_without_keys_do_not_depend_on_need_weights(t: LayerTrial) -> None:
    """A row that sees no key follows one convention, whether the weights are asked for or not."""
    asked, not_asked = t.run_layer(), t.run_layer(t.layer.but(need_weights=False))
    t.close(
        np.isnan(asked.out),
        np.isnan(not_asked.out),
        np.zeros(asked.out.shape),
        "row {row} sees no key, and need_weights decides whether it is NaN",
    )


@declare(
    "key_padding_mask = mask (B, 1, 1, S) = keys removed",
    contract="multihead",
    needs=("key_padding_mask",),
    **SIZES,
    mask="none",
    is_causal=False,
)
def padding_mask_deletes_keys(t: LayerTrial) -> None:
    """A padded key is as good as absent, whatever it holds, and each sequence has its own padding.

    Without causality, which counts positions: keys that move up when others are removed would be seen earlier.
    """
    padded = padding(t)
    inputs = t.layer.but(padding=padded)
    run = t.run_layer(inputs)
    t.inside(run, run.bound, "row {row} is wrong about the padding of batch {head}", posed(t, run))
    b = t.choice("sequence", len(inputs.key))
    remaining = ~padded[b]
    alone = inputs.but(
        query=inputs.query[b : b + 1], key=inputs.key[b : b + 1, remaining], value=inputs.value[b : b + 1, remaining], padding=None
    )
    single = t.run_layer(alone)
    t.close(run.out[b], single.out[0], run.bound[b] + single.bound[0], f"sequence {b} differs without its padded keys", posed(t, run)[b])
    hidden = padded[..., None]
    own = t.run_layer(inputs.but(key=inputs.key.copy(), value=inputs.value.copy()))  # no array is shared: where one is, the path is another
    garbage = t.run_layer(inputs.but(key=np.where(hidden, -inputs.key, inputs.key), value=np.where(hidden, 8 * inputs.value, inputs.value)))
    t.same_bits(garbage.out, own.out, "row {row} changed with the content of a padded key", posed(t, run))


@declare(
    "key_padding_mask ∧ mask",
    contract="multihead",
    needs=("key_padding_mask", "attn_mask"),
    **SIZES,
    mask="random",
    mask_kind=("bool", "minus_infinity", "bias"),
    mask_axes=("LS", "HLS", "HLS", "HLS", "BLS", "BHLS", "S", "BS", "HS"),
)
def padding_composes_with_the_mask(t: LayerTrial) -> None:
    """Padding, mask and causality together hide what any of them hides."""
    run = t.run_layer(t.layer.but(padding=padding(t)))
    t.inside(run, run.bound, "row {row} does not respect both the padding and the mask", posed(t, run))
    t.close(
        np.isnan(run.out),
        np.isnan(run.exact.out),
        np.zeros(run.out.shape),
        f"row {{row}} sees no key under padding and mask, and is not {t.supports.empty_rows}",
    )


@declare("∂out W_o⁻¹ [h] / ∂W_{q,k,v}[h'] = 0 for h' ≠ h", contract="multihead", exact=True, **SEVERAL_HEADS, mask="none")
def heads_touch_only_their_slice(t: LayerTrial) -> None:
    """With W_o = 1 each head fills its own slice of the output, and its projections change no other slice by a bit."""
    inputs = t.layer
    width, heads = inputs.query.shape[-1], inputs.num_heads
    identity = t.identity_weights(width)
    start = dict(inputs.weights) | {"w_o": identity["w_o"]} | ({"b_o": identity["b_o"]} if "b_o" in inputs.weights else {})
    mine = np.arange(width) // (width // heads) == t.choice("head", heads)  # the features of one head
    changed = start | {name: np.where(mine[:, None], -start[name], start[name]) for name in ("w_q", "w_v")}
    plain, other = t.run_layer(inputs.but(weights=start)), t.run_layer(inputs.but(weights=changed))
    t.same_bits(other.out, plain.out, "feature {column} changed with the projections of another head", ~mine)


@declare("W_o = 0  ⇒  out = b_o", contract="multihead", exact=True, with_bias=True, unbiased=("", "k", "qkv"), **SIZES, mask="none")
def zero_output_projection_returns_the_bias(t: LayerTrial) -> None:
    """If the output projection is zero, only its bias is left."""
    weights = dict(t.layer.weights)
    run = t.run_layer(t.layer.but(weights=weights | {"w_o": np.zeros_like(weights["w_o"])}))
    t.same_bits(run.out, np.broadcast_to(weights["b_o"], run.out.shape), "position {row} is not the bias of W_o")


@declare("rows of W_{q,k,v} and columns of W_o permuted by heads", contract="multihead", **SEVERAL_HEADS, mask="none")
def permuted_heads_of_the_layer_change_nothing(t: LayerTrial) -> None:
    """Heads have no order: permuting them in all projections changes nothing."""
    inputs = t.layer
    width, heads = inputs.query.shape[-1], inputs.num_heads
    size = width // heads
    order = (t.permutation("heads", heads)[:, None] * size + np.arange(size)).reshape(-1)
    moved = {name: w[order] for name, w in inputs.weights.items() if name != "b_o"}
    moved |= {"w_o": inputs.weights["w_o"][:, order]} | {k: w for k, w in inputs.weights.items() if k == "b_o"}
    agree(t, t.run_layer(inputs.but(weights=moved)), t.run_layer(), "position {row} depends on the order of the heads")


@declare("layer(P·x) = P·layer(x)", contract="multihead", **SIZES, mask="none", is_causal=False)
def self_attention_commutes_with_permutation(t: LayerTrial) -> None:
    """Self-attention without positions does not know the order of its tokens."""
    order = t.permutation("tokens", t.case.queries)
    inputs = t.self_attention
    plain = t.run_layer(inputs)
    shuffled = inputs.query[:, order]
    permuted = t.run_layer(inputs.but(query=shuffled, key=shuffled, value=shuffled))
    t.close(permuted.out, plain.out[:, order], permuted.bound + plain.bound[:, order], "token {row} depends on its place")


@declare("∂out_i/∂x_j = 0 for j > i", contract="multihead", needs=("is_causal",), exact=True, **SIZES, is_causal=True, mask_kind=DEFINITE)
def layer_ignores_future_tokens(t: LayerTrial) -> None:
    """In causal self-attention, changing later tokens does not change a single bit of the earlier outputs."""
    inputs = t.self_attention
    row = t.choice("row", t.case.queries)
    later = (np.arange(t.case.queries) > row)[:, None]
    other = np.where(later, -inputs.query, inputs.query)
    plain, changed = t.run_layer(inputs), t.run_layer(inputs.but(query=other, key=other, value=other))
    t.same_bits(changed.out, plain.out, f"position {{row}} changed when tokens after {row} changed", ~later & posed(t, plain))


@declare("query, key, value, weights after = before", contract="multihead", exact=True, **SIZES)
def layer_arguments_are_unchanged(t: LayerTrial) -> None:
    """The layer leaves its arguments as they were, bit for bit."""
    inputs = t.layer
    t.run_layer(inputs)
    given = {name: getattr(inputs, name) for name in ("query", "key", "value", "mask")} | dict(inputs.weights)
    for name, array in t.buffers.contents():
        t.same_bits(array, given[name], f"{name} was changed by the call")


@declare("shapes (B, L, E) and (B, H, L, S), dtype and device of query", contract="multihead", exact=True, dtypes="all", **SIZES)
def layer_output_has_the_right_form(t: LayerTrial) -> None:
    """The output has the shape, the dtype and the device of the query; weights are per head, and none if not asked for."""
    t.run_layer()
    form = t.form
    if "need_weights" in t.target.parameters and t.run_layer(t.layer.but(need_weights=False)).weights is not None:
        t.fail("returned weights that nobody asked for (need_weights = False)")
    shape = t.layer.query.shape
    if form != (shape, t.case.dtype, t.case.device):
        t.fail(f"returned {form[1]} {form[0]} on {form[2]}, expected {t.case.dtype} {shape} on {t.case.device}")
