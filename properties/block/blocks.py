"""Encoder and decoder layers, blocks for short: attention and a feed-forward part, each with a residual and a norm around it.

    post-norm  y = N₁(x + A(x)),  z = N₂(y + F(y))        F(y) = W₂ act(W₁ y + b₁) + b₂
    pre-norm   y = x + A(N₁(x)),  z = y + F(N₂(y))        N(x) = g (x − μ) / √(v + ε) + β, over the features of one token

A decoder layer attends to the memory between the two, with a residual and a norm of its own. Everything below holds of both.
"""

from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import round_to
from ..engine.core.declare import declare
from .cases import DEFINITE
from .trial import BlockTrial

UNMASKED: dict[str, Any] = {"mask": "none", "memory_mask": "none", "padding": False, "memory_padding": False}
SEVERAL: dict[str, Any] = {"kv_heads": (2, 3, 4), "dim": (2, 3, 4)}
# Numbers of small spread show where ε stands.
NEAR_EPS: dict[str, Any] = {"magnitude": (-6, -8, -3, 0), "values": ("normal", "constant", "simple")}


def other_tokens(t: BlockTrial) -> Array:
    """(B, L, 1) bool: all tokens of all sequences but one."""
    others = np.ones((t.case.batch, t.case.queries, 1), dtype=bool)
    others[t.choice("sequence", t.case.batch), t.choice("row", t.case.queries)] = False
    return others


# ---------------------------------------------------------------- the whole layer


@declare("|layer − exact| ≤ E, E by composition", contract="block", dtypes="all", mask_kind=DEFINITE)
def block_is_inside_the_bound(t: BlockTrial) -> None:
    """The layer is as near to the exact composition of its sublayers, residuals and norms as its arithmetic promises."""
    t.inside_block(t.run_block(), "row {row}, feature {column} is off")


@declare(
    "W ↦ −W changes the output, W ∈ weights",
    contract="block",
    exact=True,
    **UNMASKED,
    dtype=("float64", "float32"),
    values="normal",
    magnitude=0,
    queries=(3, 4, 5),
    keys=(3, 4, 5),
    kv_heads=(1, 2, 3),
    dim=(3, 4, 5),
    hidden=(16, 17),
)
def every_weight_is_used(t: BlockTrial) -> None:
    """Each array among the weights has a part in the output; only the bias of the keys has none, for it shifts whole rows of logits."""
    plain = t.run_block().out
    for name in t.block.weights:
        if not name.endswith("b_k") and np.array_equal(plain, t.run_block(t.block.with_weights(**{name: -t.block.weights[name]})).out):
            t.fail(f"the output does not depend on {name}")


@declare("∂out[b]/∂x[b'] = 0 for b' ≠ b", contract="block", exact=True, batch=(2, 3, 4), dtypes="all")
def sequences_do_not_meet(t: BlockTrial) -> None:
    """Other sequences of the batch, and their memories, do not change a bit of a sequence's output."""
    inputs, b = t.block, t.choice("sequence", t.case.batch)
    others = (np.arange(t.case.batch) != b)[:, None, None]
    changed = inputs.but(x=np.where(others, -inputs.x, inputs.x))
    if inputs.memory is not None:
        changed = changed.but(memory=np.where(others, -inputs.memory, inputs.memory))
    t.same_bits(t.run_block(changed).out, t.run_block().out, f"sequence {b} changed with other sequences", ~others)


# ---------------------------------------------------------------- masks


@declare(
    "∂out_i/∂x_j = 0 for j > i",
    contract="block",
    needs=("is_causal",),
    exact=True,
    is_causal=True,
    queries=(2, 3, 4, 5, 8, 17),
    padding=False,
    dtypes="all",
)
def causal_block_ignores_the_future(t: BlockTrial) -> None:
    """In a causal layer, changing later tokens does not change a single bit of the earlier outputs."""
    row = t.choice("row", t.case.queries)
    later = (np.arange(t.case.queries) > row)[:, None]
    changed = t.run_block(t.block.but(x=np.where(later, -t.block.x, t.block.x)))
    t.same_bits(changed.out, t.run_block().out, f"row {{row}} changed when tokens after {row} changed", ~later)


@declare(
    "key_padding_mask = tokens removed",
    contract="block",
    needs=("key_padding_mask",),
    padding=True,
    mask="none",
    memory_mask="none",
    memory_padding=False,
    queries=(2, 3, 4, 5, 8, 17),
)
def padded_tokens_are_as_good_as_removed(t: BlockTrial) -> None:
    """What a padded token holds changes no bit of the others, and without the padded tokens the others are the same."""
    inputs, run = t.block, t.run_block()
    assert inputs.padding is not None
    hidden = inputs.padding[..., None]
    garbage = t.run_block(inputs.but(x=np.where(hidden, 8 - inputs.x, inputs.x)))
    t.same_bits(garbage.out, run.out, "row {row} changed with the content of a padded token", run.posed)
    b = t.choice("sequence", t.case.batch)
    remaining, one = ~inputs.padding[b], slice(b, b + 1)
    source = inputs if inputs.memory is None else inputs.but(memory=inputs.memory[one])
    alone = t.run_block(source.but(x=inputs.x[one, remaining], padding=None))
    t.close(
        run.out[one, remaining],
        alone.out,
        run.bound[one, remaining] + alone.bound,
        f"sequence {b} differs without its padded tokens",
        run.posed[one, remaining] & alone.posed,
    )


@declare(
    "a padded token is a query like any other",
    contract="block",
    needs=("key_padding_mask",),
    padding=True,
    mask="none",
    memory_mask="none",
    memory_padding=False,
    is_causal=False,
    queries=(2, 3, 4, 5, 8),
)
def padded_rows_are_computed_too(t: BlockTrial) -> None:
    """A padding mask hides keys, not queries: the row of a padded token is computed from the tokens that it sees."""
    run = t.run_block()
    t.inside(run, run.bound, "row {row} is padding, and is not computed like the others")


@declare(
    "mask ∧ key_padding_mask ∧ causal",
    contract="block",
    needs=("key_padding_mask", "attn_mask"),
    padding=True,
    mask=("random", "band", "one_hole", "documents"),
    mask_axes=("LS", "HLS", "BLS", "BHLS", "S", "BS"),
    queries=(2, 3, 4, 5, 8),
)
def mask_and_padding_compose(t: BlockTrial) -> None:
    """Mask, padding and causality together hide what any of them hides, and add what the mask adds."""
    t.inside_block(t.run_block(), "row {row} does not respect both the mask and the padding")


@declare(
    "no visible token: A = b_o",
    contract="block",
    needs=("attn_mask",),
    mask=("nothing", "empty_rows"),
    memory_mask="none",
    mask_axes=("LS", "BLS"),
    mask_kind=("bool", "minus_infinity"),
    padding=False,
    memory_padding=False,
    queries=(1, 2, 3, 4, 5),
)
def tokens_that_see_nothing_follow_the_convention(t: BlockTrial) -> None:
    """The attention of a token that may look at none is zero before W_o (or, where declared, NaN), and spoils no other token."""
    run = t.run_block()
    t.close(
        np.isnan(run.out),
        np.isnan(run.exact.near),
        np.zeros(run.out.shape),
        f"row {{row}} sees no token and is not {t.supports.empty_rows}, or it spoils another",
    )
    t.inside(run, run.bound, "row {row} is off")


# ---------------------------------------------------------------- residuals and norms


@declare("W_o = W₂ = 0, b = 0  ⇒  out = x", contract="block", exact=True, norm_first=True, **UNMASKED, dtypes="all")
def pre_norm_without_sublayers_is_the_identity(t: BlockTrial) -> None:
    """In a pre-norm layer nothing stands on the way of the residual: without its sublayers it is the identity, bit for bit."""
    run = t.run_block(t.cut(None, "w_2", "b_2"))
    t.same_bits(run.out, t.block.x, "feature {column} of row {row} changed", t.bounded(run))


@declare("W_o = W₂ = 0, b = 0  ⇒  out = N₂(N₁(x))", contract="block", norm_first=False, **UNMASKED, **NEAR_EPS, dtypes="all")
def post_norm_without_sublayers_is_its_norms(t: BlockTrial) -> None:
    """Without its sublayers a post-norm layer is norm after norm, which rounds so little that ε shows."""
    t.inside_block(t.run_block(t.cut(None, "w_2", "b_2")), "feature {column} of row {row} is not the norm")


@declare(
    "F = 0, g = c, β = b  ⇒  mean(out) = b, var(out) = c² v/(v + ε)",
    contract="block",
    norm_first=False,
    **NEAR_EPS,
    with_bias=True,
    dtypes="all",
    mask_kind=DEFINITE,
)
def post_norm_output_has_the_mean_and_variance_of_its_norm(t: BlockTrial) -> None:
    """The features of every token leave a post-norm layer with the mean β, and with the variance g² less the share of ε."""
    c, b = 2.0, 0.5
    last = {f"g_{t.norms}": np.full(t.block.x.shape[-1], c), f"beta_{t.norms}": np.full(t.block.x.shape[-1], b)}
    w = t.block.weights  # without its feed-forward part the last norm says what it is, whatever the activation
    run = t.run_block(t.block.with_weights(**last, w_2=np.zeros_like(w["w_2"]), b_2=np.zeros_like(w["b_2"])))
    exact, slack = run.exact.near, 1 + 2.0**-40
    mean, deviation = run.out.mean(-1, keepdims=True), run.out.std(-1, keepdims=True)
    t.close(mean, np.full(mean.shape, b), run.bound.mean(-1, keepdims=True) * slack + 2.0**-48, "the mean of row {row} is not β", run.posed)
    t.close(
        deviation,
        exact.std(-1, keepdims=True),
        np.sqrt((run.bound**2).mean(-1, keepdims=True)) * slack + 2.0**-48,
        "the deviation of row {row} is not that of a norm",
        run.posed,
    )


@declare(
    "W_o = 0  ⇒  ∂out[b, i]/∂x[b', j] = 0 for (b', j) ≠ (b, i)",
    contract="block",
    exact=True,
    **UNMASKED,
    dtypes="all",
    queries=(1, 2, 3, 4, 5, 17),
    batch=(2, 3, 4),
)
def norms_are_over_features_alone(t: BlockTrial) -> None:
    """With attention cut off a token stands alone: other tokens and other sequences do not change a bit of it."""
    others, inputs = other_tokens(t), t.cut()
    plain, changed = t.run_block(inputs), t.run_block(inputs.but(x=np.where(others, 3 - inputs.x, inputs.x)))
    alone = ~others & t.bounded(plain, changed)
    t.same_bits(changed.out, plain.out, "row {row} changed with another token, though attention is cut off", alone)


@declare("N(x + c) = N(x)", contract="block", **UNMASKED, values="simple", magnitude=0, dtypes="all")
def shift_of_a_token_passes_no_norm(t: BlockTrial) -> None:
    """A constant added to all features is lost in the norm: pre-norm it passes by the residual alone, post-norm not at all."""
    inputs = t.block if t.case.norm_first else t.cut(None, "w_2", "b_2")
    shift = 4.0  # x holds halves below 4: the sum is exact in every type
    plain, moved = t.run_block(inputs), t.run_block(inputs.but(x=inputs.x + shift))
    expected = plain.out + shift * t.case.norm_first
    rounding = 2.0**-52 * np.abs(expected)
    t.close(moved.out, expected, plain.bound + moved.bound + rounding, "row {row} depends on the mean of its features", plain.posed)


@declare(
    "N(a x) = N(x) up to ε",
    contract="block",
    norm_first=False,
    **UNMASKED,
    values=("normal", "simple", "constant"),
    magnitude=(0, -3, 3, -6),
    dtypes="all",
)
def scale_of_a_token_passes_no_norm(t: BlockTrial) -> None:
    """A factor common to all features is lost in the norm, but for ε: norm after norm is c/√D, where D = v + ε D′ begins at D′ = 1."""
    neutral = {f"g_{n}": np.ones(t.block.x.shape[-1]) for n in range(1, t.norms + 1)}
    neutral |= {f"beta_{n}": np.zeros(t.block.x.shape[-1]) for n in range(1, t.norms + 1)}
    inputs = t.cut(t.block.with_weights(**neutral), "w_2", "b_2")
    plain, scaled = t.run_block(inputs), t.run_block(inputs.but(x=4 * inputs.x))
    v = inputs.x.var(-1, keepdims=True)
    small, large = np.ones(v.shape), np.ones(v.shape)
    for _ in range(t.norms):
        small, large = v + t.supports.eps * small, 16 * v + t.supports.eps * large
    factor = 4 * np.sqrt(small / large)
    rounding = 2.0**-44 * (1 + np.abs(inputs.x.mean(-1, keepdims=True)) / np.sqrt(small)) ** 2 * np.abs(plain.out)  # of v, in float64
    t.close(scaled.out, factor * plain.out, scaled.bound + factor * plain.bound + rounding, "row {row} depends on its scale", plain.posed)


# ---------------------------------------------------------------- the feed-forward part


@declare("W₁ = 0, b₁ < 0  ⇒  ∂out/∂W₂ = 0", contract="block", exact=True, activation="relu", with_bias=True, **UNMASKED, dtypes="all")
def relu_passes_nothing_negative(t: BlockTrial) -> None:
    """What is negative before relu is exactly zero behind it: then W₂ has no part in the output."""
    w = t.block.weights
    negative = t.block.with_weights(w_1=np.zeros_like(w["w_1"]), b_1=-1 - np.abs(w["b_1"]))
    t.same_bits(
        t.run_block(negative.with_weights(w_2=-2 * w["w_2"])).out,
        t.run_block(negative).out,
        "feature {column} of row {row} depends on W₂, though nothing passes the relu",
    )


@declare(
    "W₁ = 0  ⇒  F = W₂ act(b₁) + b₂", contract="block", activation=("gelu", "gelu", "relu"), with_bias=True, **UNMASKED, hidden=(1, 2, 3, 8)
)
def activation_is_the_declared_one(t: BlockTrial) -> None:
    """The activation, seen alone at numbers between −4 and 4, is relu or the form of gelu that is declared."""
    w = t.block.weights
    probe = round_to(t.case.dtype, 2 * t.noise("probe", w["b_1"].shape))
    run = t.run_block(t.cut(t.block.with_weights(w_1=np.zeros_like(w["w_1"]), b_1=probe)))
    t.inside_block(run, f"row {{row}} is not made with {t.case.activation}")


# ---------------------------------------------------------------- form


@declare("twice the same call, the same bits", contract="block", exact=True, dtypes="all")
def block_repeats_itself(t: BlockTrial) -> None:
    """The same call gives the same bits, also after a call of another form: nothing is remembered, nothing is drawn. Nor is an answer changed
    that was given."""
    first = t.run_block().out
    t.run_block(t.block.but(x=t.block.x[:, :1], mask=None, padding=None, memory_mask=None))
    t.same_bits(t.run_block().out, first, "row {row} differs in a second call")
    t.stays(t.own, lambda: t.run_block(t.block.but(x=-t.block.x)))


@declare("arguments after = before", contract="block", exact=True, dtypes="all")
def block_arguments_are_unchanged(t: BlockTrial) -> None:
    """The layer leaves its arguments as they were, bit for bit."""
    t.run_block()
    given = t.given(t.block)
    for name, array in t.buffers.contents():
        t.same_bits(array, given[name], f"{name} was changed by the call")


@declare("shape (B, L, E), dtype and device of x", contract="block", exact=True, dtypes="all")
def block_output_has_the_right_form(t: BlockTrial) -> None:
    """The output has the shape, the dtype and the device of the tokens."""
    t.run_block()
    if t.form != (t.block.x.shape, t.case.dtype, t.case.device):
        t.fail(f"returned {t.form[1]} {t.form[0]} on {t.form[2]}, expected {t.case.dtype} {t.block.x.shape} on {t.case.device}")
