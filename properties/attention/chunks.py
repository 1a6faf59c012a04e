"""Chunks: attention over a union of keys is the weighted mean of the attentions over the parts.

out = λ·out_1 + (1 − λ)·out_2,   λ = Σ_{j in part 1} w_j,    which is how flash and split-KV kernels work (Dao et al. 2022)
"""

import numpy as np

from .common import size
from .contract import declare
from .trial import Trial


@declare(
    "out = λ·out(first keys) + (1 − λ)·out(other keys)",
    is_causal=False,
    mask="none",
    zero_sizes=False,
    keys=(2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 65, 129),
    values=("normal", "one_hot", "rising", "simple", "heavy"),
    moves=True,
)
def chunks_merge_to_the_whole(t: Trial) -> None:
    """The keys split into two parts, each attended alone, merge to the whole by the weight that falls on each part."""
    keys = t.inputs.shape[3]
    first = np.arange(keys) < 1 + t.choice("cut", keys - 1)
    share = t.run(t.inputs.but(v=np.broadcast_to(first[:, None] * 1.0, t.inputs.v.shape)))  # λ in every feature
    whole, one, two = t.run(), t.run(t.inputs.take("S", np.flatnonzero(first))), t.run(t.inputs.take("S", np.flatnonzero(~first)))
    merged = share.out * one.out + (1 - share.out) * two.out
    part = size(share.out) + share.bound
    allowed = (
        whole.bound
        + part * one.bound
        + (1 + part) * two.bound
        + share.bound * (size(one.out - two.out) + one.bound + two.bound)
        + 2.0**-51 * (1 + part) * (size(one.out) + size(two.out))
    )  # this computation, in float64
    allowed = np.where(np.isinf(whole.bound + share.bound + one.bound + two.bound), np.inf, allowed)  # not 0 · ∞
    t.close(whole.out, merged, allowed, "row {row} is not the merge of its two parts")


@declare("out(K ∪ K, V ∪ V) = out(K, V)", is_causal=False, moves=True)
def duplicated_keys_change_nothing(t: Trial) -> None:
    """Every key counted twice halves all the weights, and changes nothing."""
    twice = np.tile(np.arange(t.inputs.shape[3]), 2)
    plain, doubled = t.run(), t.run(t.inputs.take("S", twice))
    t.close(doubled.out, plain.out, doubled.bound + plain.bound, "row {row} changed when every key was given twice")


@declare(
    "out(K ∪ {k}, V ∪ {v}) = out(K, V) if k is hidden", needs=("attn_mask",), is_causal=False, mask="none", writes=("bool",), along="S"
)
def key_at_minus_infinity_changes_nothing(t: Trial) -> None:
    """One more key that the mask hides changes nothing."""
    batch, heads, keys, dim = t.inputs.k.shape
    more_k = np.concatenate([t.inputs.k, t.noise("key", (batch, heads, 1, dim))], axis=2)
    more_v = np.concatenate([t.inputs.v, 9 * t.noise("value", (batch, heads, 1, t.inputs.v.shape[3]))], axis=2)
    mask = np.arange(keys + 1) < keys
    plain, longer = t.run(), t.run(t.inputs.but(k=more_k, v=more_v, mask=mask[None, :]))
    t.close(longer.out, plain.out, longer.bound + plain.bound, "row {row} changed with one more hidden key")
