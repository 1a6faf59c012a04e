"""Gradients through features: what windows, caps, slopes, sinks, lengths and dropout do to them.

window, lengths   what is not seen receives nothing
softcap           dT = (1 − tanh²(t/c)) dS: a saturated logit sends nothing back
sinks             a key of value 0: dz_h = −Σ_i P_i,sink δ_i, and the values receive what the sink leaves
dropout           out = (P∘M) V, M = b/(1 − p):  dV = (P∘M)ᵀ dO,  dP = M∘(dO Vᵀ) with the M of the forward pass
"""

from typing import Any

import numpy as np

from ..exact.gradient_oracle import over_groups
from .backward import run_backward
from .common import live, size
from .contract import declare
from .features import DROPPED, dropping, rate
from .gradients import BIASED, FEATURES, MANY, SUMMED, TAME, agree, inside, rounding
from .masks import hidden_from_all
from .tables import SHORT
from .trial import Trial

PLAIN: dict[str, Any] = {"mask": "none", "zero_sizes": False}


def receive_nothing(t: Trial, unseen: np.ndarray, says: str) -> None:
    """The gradients of these keys (B, Hkv, S) and of their values are zero, bit for bit."""
    run = run_backward(t)
    if t.empty_rows != "zero":  # NaN, or a share of the mean of all, goes back to every key
        unseen = unseen & np.asarray(live(t).all(axis=(1, 2), keepdims=True))[..., 0]
    for name in ("k", "v"):
        t.same_bits(np.asarray(getattr(run, name)), np.zeros(getattr(run, name).shape), says, unseen[..., None])


@declare(
    "dQ, dK, dV under window, softcap, ALiBi, sinks and lengths ≤ E off",
    dtypes="all",
    grad=MANY,
    zero_sizes=False,
    needs=("gradients", "window_size", "softcap", "alibi_slopes", "sinks"),
    features=FEATURES,
    at_least={"keys": 2},
)
def gradients_of_all_features_are_inside_the_bound(t: Trial) -> None:
    """All features at once, with masks, causality and grouped heads: every gradient is as near as the arithmetic promises."""
    inside(t, run_backward(t))


@declare(
    "j outside every window  ⇒  dk_j = dv_j = 0",
    needs=("gradients", "window_size"),
    exact=True,
    grad=MANY,
    values=TAME,
    features=("window_size", "softcap", "sinks"),
    is_causal=(True, True, False),
    **PLAIN,
)
def keys_outside_the_window_receive_no_gradient(t: Trial) -> None:
    """A key that no row's window shows receives no gradient, exactly."""
    receive_nothing(t, hidden_from_all(t), "key {row} is outside every window and receives a gradient")


@declare(
    "j ≥ lengths[b]  ⇒  dk_j = dv_j = 0",
    needs=("gradients", "kv_lengths"),
    exact=True,
    grad=MANY,
    values=TAME,
    features=("kv_lengths", "softcap", "sinks"),
    batch=(1, 2, 3, 4),
    **PLAIN,
)
def keys_beyond_the_length_receive_no_gradient(t: Trial) -> None:
    """A key beyond the length of its sequence receives no gradient, exactly; each sequence has its own length."""
    receive_nothing(t, hidden_from_all(t), "key {row} of batch {batch} is beyond its length and receives a gradient")


@declare(
    "gradients under a window = those under the mask i − left ≤ j ≤ i + right",
    grad=MANY,
    needs=("gradients", "window_size", "attn_mask"),
    writes=("bool",),
    along="LS",
    features=("window_size", "softcap", "sinks"),
    **PLAIN,
)
def window_gradients_are_those_of_the_band_mask(t: Trial) -> None:
    """Backward, too, a window is the same as the explicit band mask."""
    explicit = t.inputs.but(window=None, is_causal=False, mask=t.visible())
    agree(t, run_backward(t), run_backward(t, explicit), "row {row} of the gradient of NAME differs between window_size and the band mask")


@declare(
    "gradients under ALiBi = those under the bias −m_h·|i − j|",
    grad=MANY,
    kv_heads=(1, 2, 3),
    queries=SHORT,
    keys=SHORT,
    needs=("gradients", "alibi_slopes", "attn_mask"),
    writes=("bias",),
    along="HLS",
    features=("alibi_slopes", "softcap", "window_size"),
    **PLAIN,
)
def alibi_gradients_are_those_of_its_bias(t: Trial) -> None:
    """Backward, too, ALiBi is the same as the additive mask that writes its distances out."""
    assert t.inputs.slopes is not None
    simple = t.inputs.but(slopes=2.0 ** np.round(np.log2(t.inputs.slopes)))  # so that the mask is exact in every type
    alibi = simple.alibi(t.supports.causal)
    assert alibi is not None
    written = simple.but(slopes=None, mask=np.broadcast_to(alibi, t.inputs.shape))
    agree(
        t,
        run_backward(t, simple),
        run_backward(t, written),
        "row {row} of the gradient of NAME differs between alibi_slopes and their bias",
    )


@declare(
    "dT = (1 − tanh²(t/c)) dS",
    needs=("gradients", "softcap"),
    dtypes="all",
    grad=MANY,
    zero_sizes=False,
    at_least={"keys": 2},
    features=("softcap", "sinks", "window_size"),
    values=("normal", "normal", "large", "one_hot", "rising", "near_ties"),
)
def softcap_gradients_are_inside_the_bound(t: Trial) -> None:
    """The gradients pass through the softcap with its own derivative, wherever on its curve the logits lie."""
    inside(t, run_backward(t))


@declare(
    "|t| ≫ c  ⇒  dq = dk = 0 up to rounding",
    needs=("gradients", "softcap"),
    grad=MANY,
    softcap=(1.0, 0.5, 2.0),
    features=("softcap",),
    scale=(None, 1.0, 2.0),
    magnitude=0,
    values=TAME,
    dtype=("float64", "float32"),
    at_least={"keys": 2},
    zero_sizes=False,
)
def saturated_logits_receive_no_gradient(t: Trial) -> None:
    """Logits far beyond the cap have nothing to gain: queries and keys receive no gradient through them."""
    far = run_backward(t, t.inputs.but(q=np.abs(t.inputs.q) + 1, k=64 * (np.abs(t.inputs.k) + 1)))  # |t/c| ≥ 32
    for name in ("q", "k"):
        exact = np.abs(getattr(far.gradients, name))
        t.close(
            getattr(far, name), np.zeros(1), exact + getattr(far.limits, name), f"row {{row}} of {name} gains through a saturated logit"
        )


@declare(
    "dz_h = −Σ_i P_i,sink δ_i",
    needs=("sink_gradients", "sinks"),
    dtypes="all",
    grad=MANY,
    batch=(1, 2, 3),
    kv_heads=(1, 2, 3),
    features=("sinks", "softcap", "window_size", "alibi_slopes"),
    zero_sizes=False,
)
def sink_gradient_is_inside_the_bound(t: Trial) -> None:
    """The gradient of a sink is that of its logit, summed over batch elements and rows."""
    run_backward(t, wrt=("sinks",)).inside("sinks", "the gradient of the sink of head {column} is off")


@declare(
    "Σ dbias + Σ dz = 0",
    needs=("sink_gradients", "bias_gradients", "sinks", "attn_mask"),
    mask_kind=BIASED,
    grad=MANY,
    features=("sinks", "softcap", "window_size"),
    values=SUMMED,
    zero_sizes=False,
)
def sink_and_bias_gradients_balance(t: Trial) -> None:
    """A number added to all logits and to the sinks changes nothing, so their gradients together sum to zero."""
    run = run_backward(t, wrt=("mask", "sinks"))
    total = np.array([run.mask.sum() + run.sinks.sum()])
    terms = size(run.mask).sum() + size(run.sinks).sum()
    allowed = run.limits.of_bias(run.mask.shape).sum() + run.limits.of_sinks().sum() + rounding(terms, run.mask.size + run.sinks.size)
    t.close(total, np.zeros(1), np.array([allowed]), "the gradients of the bias and of the sinks do not sum to zero")


@declare(
    "Σ_j dv_j = Σ_i (1 − P_i,sink) dO_i",
    needs=("gradients", "sinks"),
    features=("sinks", "softcap", "window_size"),
    grad=MANY,
    values=SUMMED,
)
def sinks_keep_their_share_of_the_value_gradient(t: Trial) -> None:
    """The values together receive what the weights of the rows add up to, as V = 1 shows it: the sink keeps the rest."""
    run, whole, kv_heads = run_backward(t), t.run(t.inputs.but(v=np.ones_like(t.inputs.v))), t.inputs.k.shape[1]
    share, grad = np.where(live(t), whole.out, 0.0), run.grad_out
    given, terms, slack = (
        over_groups(x.sum(2, keepdims=True), kv_heads)
        for x in (share * grad, size(share * grad), np.where(live(t), whole.bound, 0.0) * np.abs(grad))
    )
    allowed = run.limits.v.sum(2, keepdims=True) + slack + rounding(terms, t.inputs.shape[2] * t.inputs.group)
    allowed = allowed + rounding(size(run.v).sum(2, keepdims=True), t.inputs.shape[3])
    t.close(
        run.v.sum(2, keepdims=True),
        given,
        np.where(np.isnan(allowed), np.inf, allowed),
        "the values of head {head} receive more or less than the sink leaves",
    )


# ---------------------------------------------------------------- dropout

DROPPING: dict[str, Any] = {
    **DROPPED,
    "needs": ("dropout_gradients", "dropout_p", "value_dim"),
    "grad": ("normal", "ones", "positive", "one_row"),
}


def kept_weights(t: Trial) -> np.ndarray:
    """(B, H, L, S) weights after dropout, read through V = I from the seed of the case."""
    return np.asarray(t.weights(dropping(t)).out)


@declare("dV = (A∘B)ᵀ dO / (1 − p), A∘B read through V = I from the same seed", **DROPPING)
def value_gradients_are_dropped_like_the_weights(t: Trial) -> None:
    """What the forward pass drops, the backward pass drops: a value receives from the rows that kept its weight, and no other."""
    read, plain, factor, kv_heads = kept_weights(t), t.weights(), 1 / (1 - rate(t)), t.inputs.k.shape[1]
    run = run_backward(t, dropping(t), kept=factor * (read != 0))
    expected = over_groups(read.swapaxes(-1, -2) @ run.grad_out, kv_heads)
    slack = over_groups((2 * factor * plain.bound * (read != 0)).swapaxes(-1, -2) @ np.abs(run.grad_out), kv_heads)
    slack = slack + rounding(over_groups(read.swapaxes(-1, -2) @ np.abs(run.grad_out), kv_heads), t.inputs.shape[2] * t.inputs.group)
    t.close(run.v, expected, run.limits.v + slack, "value {row} does not receive what its kept weights give")


@declare("dQ, dK, dV of (P∘M) V, M = [weight kept] / (1 − p)", **DROPPING)
def dropout_gradients_are_inside_the_bound(t: Trial) -> None:
    """With the weights that the forward pass kept, all gradients are the exact ones: the softmax before it, the factor after it."""
    run = run_backward(t, dropping(t), kept=(kept_weights(t) != 0) / (1 - rate(t)))
    inside(t, run)
