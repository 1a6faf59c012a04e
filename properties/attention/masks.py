"""Masks: a hidden key is as good as deleted, however the mask says it.

s_ij = −∞ where key j is hidden from query i;  an additive mask is added to the logits;  True = attend
"""

import numpy as np

from ..engine.cases.masks import other_mask
from ..engine.cases.regimes import TELLING
from ..engine.core.target import NotTaken, Raised
from .cases import BESIDE
from .common import live, reads_visible
from .contract import declare
from .inputs import Inputs
from .tables import SHORT
from .trial import Run, Trial

HIDING = ("bool", "minus_infinity", "bias_and_minus_infinity")


def agree(t: Trial, one: Run, other: Run, says: str, where: np.ndarray | bool = True) -> None:
    """Two ways to say the same: both answers lie inside both bounds."""
    t.close(one.out, other.out, one.bound + other.bound, says, where)


def hidden_from_all(t: Trial) -> np.ndarray:
    """(B, Hkv, S) bool: keys that no query of the group can see."""
    batch, _heads, queries, keys = t.inputs.shape
    return np.asarray(~t.visible().reshape(batch, t.inputs.k.shape[1], t.inputs.group, queries, keys).any(axis=(2, 3)))


@declare("out_i = attention over { j : j visible to i }", needs=("attn_mask",), mask_kind=(*HIDING, "bias"), zero_sizes=False, moves=True)
def masked_keys_are_deleted(t: Trial) -> None:
    """A row gives the same as when the keys hidden from it are removed and the row is computed alone."""
    run, (batch, heads, queries, _) = t.run(), t.inputs.shape
    b, h, i = t.choice("batch", batch), t.choice("head", heads), t.choice("row", queries)
    visible = t.visible()[b, h, i]
    bias = t.inputs.bias()
    kv = np.s_[b : b + 1, h // t.inputs.group : h // t.inputs.group + 1, visible]
    alone = Inputs(
        q=t.inputs.q[b : b + 1, h : h + 1, i : i + 1],
        k=t.inputs.k[kv],
        v=t.inputs.v[kv],
        mask=None if bias is None else np.broadcast_to(bias, t.inputs.shape)[b, h, i : i + 1, visible].reshape(1, -1),
        scale=t.inputs.scale,
        dtype=t.inputs.dtype,
        device=t.inputs.device,
    )
    if not visible.any() and not t.supports.zero_sizes:
        return  # nothing is left to compute, and the target does not take empty arrays
    single = t.run(alone)
    t.close(
        run.out[b, h, i],
        single.out[0, 0, 0],
        run.bound[b, h, i] + single.bound[0, 0, 0],
        f"row {i} of head {h}, batch {b} differs from the same row without its hidden keys",
        reads_visible(t)[b, h, i],
    )


@declare(
    "∂out/∂k_j = ∂out/∂v_j = 0 for hidden j",
    needs=("attn_mask",),
    exact=True,
    mask_kind=HIDING,
    mask_axes=("S", "BS", "LS", "BHS", "BLS", "HS"),
    values=("normal", "one_hot", "simple"),
    models=2,
)
def masked_garbage_changes_nothing(t: Trial) -> None:
    """What stands in a hidden key and its value does not change a single bit."""
    hidden = hidden_from_all(t)[..., None]
    plain = t.run()
    garbage = t.run(
        t.inputs.but(
            k=np.where(hidden, 4 * t.noise("garbage k", t.inputs.k.shape), t.inputs.k),
            v=np.where(hidden, 64 * t.noise("garbage v", t.inputs.v.shape), t.inputs.v),
        )
    )
    t.same_bits(garbage.out, plain.out, "row {row} changed with the content of a hidden key", reads_visible(t))


@declare(
    "0 · NaN does not count where the key is hidden",
    needs=("attn_mask",),
    exact=True,
    mask_kind=HIDING,
    mask_axes=("S", "BS", "BHS", "BLS"),
    values="normal",
    batch=(1, 2, 3),
    zero_sizes=False,
)
def masked_nan_is_contained(t: Trial) -> None:
    """NaN or infinity in a hidden key or value reaches no output; where the dialect lets it leak, no other batch element."""
    hidden = hidden_from_all(t)
    b = t.choice("batch", len(hidden))
    spot = np.zeros(hidden.shape, dtype=bool)
    spot[b] = hidden[b]
    poison = (np.nan, np.inf, -np.inf)[t.choice("poison", 3)]
    plain = t.run()
    poisoned = t.run(t.inputs.but(k=np.where(spot[..., None], poison, t.inputs.k), v=np.where(spot[..., None], poison, t.inputs.v)))
    clean = t.supports.masked_nan == "contained" or np.arange(len(hidden))[:, None, None, None] != b
    t.same_bits(
        poisoned.out,
        plain.out,
        "row {row} of batch {batch} shows what stands in a hidden key",
        clean & (reads_visible(t) | (np.arange(len(hidden))[:, None, None, None] != b)),
    )


@declare("mask True/False = mask 0/−∞", needs=("attn_mask",), mask_kind="bool", writes=("minus_infinity",))
def bool_mask_equals_minus_infinity(t: Trial) -> None:
    """A bool mask is the additive mask that is 0 where it is True and −∞ where it is False."""
    assert t.inputs.mask is not None
    additive = np.where(t.inputs.mask, 0.0, -np.inf)
    plain, added = t.run(), t.run(t.inputs.but(mask=additive))
    alike = t.rows_without_keys(added.inputs) == t.empty_rows
    agree(t, plain, added, "row {row} differs between a bool and an additive mask", alike | live(t))


@declare("mask of True, or of 0 = no mask", needs=("attn_mask",), mask="everything", mask_kind=("bool", "minus_infinity"))
def neutral_mask_changes_nothing(t: Trial) -> None:
    """A mask that hides nothing is no mask."""
    agree(t, t.run(), t.run(t.inputs.but(mask=None)), "row {row} changed with a mask that hides nothing")


@declare(
    "q = 0  ⇒  out_i = Σ_j softmax_j(mask_ij)·v_j",
    needs=("attn_mask",),
    dtypes="all",
    mask=("random", "everything"),
    mask_kind=("bias", "bias_and_minus_infinity"),
    values=TELLING,
    keys=SHORT,
    queries=SHORT,
)
def zero_queries_read_the_additive_mask(t: Trial) -> None:
    """Where all products are 0 the additive mask alone makes the weights: it is added as it is, after the scale."""
    run = t.run(t.inputs.but(q=np.zeros_like(t.inputs.q)))
    t.inside(run, run.bound, "row {row} is not the values weighted by the softmax of the mask")


@declare(
    "mask and causal = mask ∧ (j ≤ i)", needs=("attn_mask", "is_causal", "mask_and_causal"), is_causal=True, along="LS", mask_kind=HIDING
)
def masks_compose(t: Trial) -> None:
    """A mask together with is_causal hides what either of them hides."""
    bias = t.inputs.bias()
    both = t.visible() if bias is None else np.where(t.visible(), bias, -np.inf)
    agree(t, t.run(), t.run(t.inputs.but(mask=both, is_causal=False)), "row {row} does not respect both masks")


@declare(
    "a mask and causal raise, or = mask ∧ (j ≤ i)",
    needs=("attn_mask", "is_causal"),
    edge=BESIDE,
    is_causal=False,
    scale=None,
    along="LS",
    mask_kind=HIDING,
    mask=("random", "random", "one_hole"),
    queries=(2, 3, 4, 5, 17),
    keys=(2, 3, 4, 5, 17),
    zero_sizes=False,
)
def a_mask_beside_causality_is_refused_or_heeded(t: Trial) -> None:
    """Where a mask is not taken together with is_causal, the two raise, or both hide: neither is dropped without a word."""
    try:
        run = t.run(t.inputs.but(is_causal=True))
    except NotTaken:
        raise
    except Raised:
        return
    t.inside(run, run.bound, "a mask is not taken together with is_causal; it was, and row {row} does not respect both")


@declare(
    "mask of size 1 along an axis = the mask repeated along it",
    needs=("attn_mask",),
    widens=True,
    mask_kind=(*HIDING, "bias"),
    mask_axes=(*("S",) * 8, *("L",) * 4, "BS", "HS", "BL", "BL", "HLS", "HLS", "BLS", ""),
    mask_rank=(*(0,) * 4, 2, 2, 3, 4),
    mask=("random", "random", "one_hole"),
    queries=(1, *(2, 3, 4, 5) * 2, 17),
    keys=(1, *(2, 3, 4, 5) * 2, 17),
    alike=(("queries", "keys"),),
    values=TELLING,
)
def masks_broadcast(t: Trial) -> None:
    """A mask of lower rank, or of size 1 along an axis, is the same as the mask written out in full."""
    assert t.inputs.mask is not None
    agree(t, t.run(), t.run(t.inputs.but(mask=t.written_out())), "row {row} changed when its mask was written out")


@declare(
    "out of (b, h) depends on mask of (b, h) alone",
    needs=("attn_mask",),
    exact=True,
    mask=("random", "random", "nothing"),
    mask_kind=("bool", "minus_infinity", "bias"),
    mask_axes=("BLS", "BLS", "BHLS", "BS", "BHS", "HLS", "HLS", "HLS"),
    batch=(2, 3, 4),
    kv_heads=(2, 3, 4),
    group=(1, 1, 2, 3),
    alike=(("batch", "kv_heads"),),
    zero_sizes=False,
    at_least={"keys": 4},
)
def masks_stay_with_their_batch_and_head(t: Trial) -> None:
    """Changing the masks of all other batch elements, or heads, leaves one as it is."""
    mask = t.inputs.mask
    assert mask is not None and mask.ndim >= 3
    varying = [axis for axis in (-4, -3) if axis + mask.ndim >= 0 and mask.shape[axis] > 1]
    axis = varying[t.choice("axis", len(varying))]
    one = t.choice("one", mask.shape[axis])
    chosen = (np.arange(mask.shape[axis]) == one).reshape([-1] + [1] * (-axis - 1))
    plain, changed = t.run(), t.run(t.inputs.but(mask=np.where(chosen, mask, other_mask(mask, t.case))))
    t.same_bits(
        changed.out,
        plain.out,
        "head {head} of batch {batch} changed with the masks of others",
        chosen & t.independent_heads(plain, changed),
    )


@declare(
    "no visible key  ⇒  out_i = 0 (or NaN, or the mean of V: the dialect)",
    needs=("attn_mask",),
    mask=("empty_rows", "empty_rows", *("nothing",) * 3, "random"),
    mask_kind=("bool", *HIDING, HIDING[-1]),
    batch=(1, 2, 2, 2, 3, 3, 1, 0),
    keys=(1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 65, 0, 0),
    mask_axes=("LS", "LS", "LS", "S", "BLS", "HLS", "BHLS", "BS", "HS", "L", "BH", *("",) * 6),
    mask_rank=(*(0,) * 8, 1, 2, 3, 4),
)
def rows_without_keys_follow_the_convention(t: Trial) -> None:
    """A row that can see no key gives what the dialect says, and poisons no other row."""
    run = t.run()
    t.inside(run, run.bound, f"row {{row}} sees no key and is not {t.empty_rows}", ~live(t))
    t.inside(run, run.bound, "row {row} is wrong beside a row that sees no key", live(t))
