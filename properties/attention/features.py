"""Features: what models add to the softmax. Each is defined by another way to say the same.

window       j visible to i only if i − left ≤ j ≤ i + right              (Beltagy et al. 2020; Jiang et al. 2023)
softcap      s ← c·tanh(s / c), before bias and mask                      (Gemma 2, 2024)
ALiBi        s_ij ← s_ij − m_h·|i − j|                                    (Press, Smith & Lewis 2022)
sinks        w_ij = exp(s_ij) / (exp(z_h) + Σ_j exp(s_ij))                (Xiao et al. 2024, gpt-oss)
kv_lengths   the keys of batch element b from lengths[b] on are not there
lse          ln Σ_j exp(s_ij), −∞ where nothing is visible                (Dao et al. 2022)
dropout      each weight is 0 with probability p, and divided by 1 − p otherwise      (Srivastava et al. 2014)
"""

from typing import Any

import numpy as np

from ..engine.cases.dtypes import FLOAT_TYPES
from ..exact import bound
from ..exact.arithmetic import arithmetic
from .common import reads_visible
from .contract import declare
from .inputs import Inputs
from .masks import agree
from .tables import SHORT
from .trial import Trial

PLAIN: dict[str, Any] = {"mask": "none", "zero_sizes": False}


@declare(
    "q = 0, V = I  ⇒  n_i·out_ij = 1 if i − left ≤ j ≤ i + right, else 0",
    needs=("window_size",),
    features=("window_size",),
    queries=SHORT,
    keys=SHORT,
    **PLAIN,
)
def window_edges_are_exact(t: Trial) -> None:
    """A window shows exactly its keys, on both sides of the diagonal, alone and under causality."""
    read = t.weights(t.inputs.but(q=np.zeros_like(t.inputs.q)))
    t.spells_out(read, t.visible())


@declare(
    "window = the mask i − left ≤ j ≤ i + right",
    needs=("window_size", "attn_mask"),
    writes=("bool",),
    along="LS",
    features=("window_size", "softcap", "sinks"),
    **PLAIN,
)
def window_equals_band_mask(t: Trial) -> None:
    """A window is the same as the explicit band mask."""
    explicit = t.inputs.but(window=None, is_causal=False, mask=t.visible())
    agree(t, t.run(), t.run(explicit), "row {row} differs between window_size and the band mask")


@declare("left ≥ L + S, right ≥ S  ⇒  window = none", needs=("window_size",), features=("softcap", "alibi_slopes"))
def wide_window_is_no_window(t: Trial) -> None:
    """A window wider than the sequence hides nothing; nor does one that is unlimited on both sides."""
    longest = sum(t.inputs.shape[2:])
    agree(t, t.run(), t.run(t.inputs.but(window=(longest, longest))), "row {row} changed under a window that hides nothing")
    agree(t, t.run(), t.run(t.inputs.but(window=(None, None))), "row {row} changed under a window without limits")


@declare(
    "no key or value outside every window counts",
    needs=("window_size",),
    exact=True,
    features=("window_size",),
    is_causal=(True, True, False),
    values=("normal", "one_hot", "simple"),
    **PLAIN,
)
def keys_outside_the_window_are_ignored(t: Trial) -> None:
    """Changing the keys that no row's window shows does not change a single bit."""
    hidden = np.logical_not(t.visible().any(axis=(0, 1, 2)))[:, None]
    changed = t.inputs.but(
        k=np.where(hidden, 4 * t.noise("garbage k", t.inputs.k.shape), t.inputs.k),
        v=np.where(hidden, 64 * t.noise("garbage v", t.inputs.v.shape), t.inputs.v),
    )
    plain = t.run()
    t.same_bits(t.run(changed).out, plain.out, "row {row} changed with a key outside every window")


@declare(
    "|c·tanh(s/c)| ≤ c  ⇒  w_ij ≥ exp(−2c)/n",
    needs=("softcap",),
    features=("softcap",),
    softcap=(1.0, 0.5, 2.0, 4.0),
    values=("large", "one_hot", "rising"),
    queries=SHORT,
    keys=SHORT,
    dtype=("float64", "float32"),
    **PLAIN,
)
def softcap_bounds_the_weights(t: Trial) -> None:
    """However far the logits lie apart, every visible key keeps a weight: capped logits differ by 2c at most."""
    read = t.weights()
    count = np.maximum(t.visible().sum(axis=-1, keepdims=True), 1)
    least = np.where(t.visible(), np.exp(-2 * (t.inputs.softcap or 0.0)) / count, 0.0)
    t.at_least(read.out, least, read.bound, "in row {row} key {column} has lost the weight that the cap leaves it", t.visible())


@declare(
    "softcap before the mask: hidden keys stay hidden",
    needs=("softcap", "attn_mask"),
    exact=True,
    features=("softcap",),
    mask_kind=("bool", "minus_infinity"),
    queries=SHORT,
    keys=SHORT,
    zero_sizes=False,
)
def softcap_leaves_the_mask_alone(t: Trial) -> None:
    """A capped logit is masked afterwards: a hidden key has no weight at all."""
    read = t.weights()
    t.same_bits(
        read.out,
        np.zeros(read.out.shape),
        "in row {row} the hidden key {column} has a weight",
        ~t.visible() & t.visible().any(axis=-1, keepdims=True),
    )


@declare(
    "ALiBi = the additive bias −m_h·|i − j|",
    needs=("alibi_slopes", "attn_mask"),
    writes=("bias",),
    along="HLS",
    features=("alibi_slopes", "softcap", "window_size"),
    kv_heads=(1, 2, 3, 4),
    queries=SHORT,
    keys=SHORT,
    **PLAIN,
)
def alibi_equals_its_bias(t: Trial) -> None:
    """ALiBi is the same as the additive mask that writes its distances out."""
    slopes = t.inputs.slopes
    assert slopes is not None
    simple = t.inputs.but(slopes=2.0 ** np.round(np.log2(slopes)))  # so that the mask is exact in every type
    alibi = simple.alibi(t.supports.causal)
    assert alibi is not None
    agree(
        t,
        t.run(simple),
        t.run(simple.but(slopes=None, mask=np.broadcast_to(alibi, t.inputs.shape))),
        "row {row} differs between alibi_slopes and the bias they stand for",
    )


@declare("m = 0  ⇒  ALiBi changes nothing", needs=("alibi_slopes",))
def zero_slopes_change_nothing(t: Trial) -> None:
    """A slope of zero is no bias."""
    agree(t, t.run(), t.run(t.inputs.but(slopes=np.zeros(t.inputs.shape[1]))), "row {row} changed under slopes of zero")


@declare("V = 1  ⇒  out_i = Σ_j exp(s_ij) / (exp(z) + Σ_j exp(s_ij))", needs=("sinks",), features=("sinks", "softcap", "window_size"))
def sinks_take_their_share(t: Trial) -> None:
    """A sink takes weight from the keys and gives nothing for it; a row that sees no key gives all to the sink."""
    run = t.run(t.inputs.but(v=np.ones_like(t.inputs.v)))
    t.inside(run, run.bound, "the weights of row {row} do not leave the sink its share")


@declare(
    "z → −∞  ⇒  sinks change nothing",
    needs=("sinks",),
    features=("softcap",),
    values=("normal", "one_hot", "rising"),
    magnitude=0,
    scale=None,
    mask_kind=("bool", "minus_infinity", "bias"),
    zero_sizes=False,
)
def sinks_far_below_change_nothing(t: Trial) -> None:
    """A sink whose logit is far below all others takes nothing."""
    low = np.full(t.inputs.shape[1], -60000.0)
    nonempty = np.asarray(t.visible().any(axis=-1, keepdims=True))
    plain, with_sinks = t.run(), t.run(t.inputs.but(sinks=low))
    t.close(with_sinks.out, plain.out, with_sinks.bound + plain.bound, "row {row} changed under a sink at −60000", nonempty)


@declare(
    "kv_lengths = keys removed",
    needs=("kv_lengths",),
    exact=True,
    features=("kv_lengths",),
    values=("normal", "one_hot", "simple"),
    batch=(1, 2, 3, 4),
    **PLAIN,
)
def keys_beyond_the_length_are_ignored(t: Trial) -> None:
    """Nothing that stands beyond the length of a sequence changes a single bit; each sequence has its own length."""
    lengths = t.inputs.lengths
    assert lengths is not None
    beyond = (np.arange(t.inputs.shape[3]) >= lengths[:, None])[:, None, :, None]
    changed = t.inputs.but(
        k=np.where(beyond, 4 * t.noise("garbage k", t.inputs.k.shape), t.inputs.k),
        v=np.where(beyond, 64 * t.noise("garbage v", t.inputs.v.shape), t.inputs.v),
    )
    plain = t.run()
    t.same_bits(t.run(changed).out, plain.out, "row {row} of batch {batch} changed with a key beyond its length", reads_visible(t))


@declare(
    "lse_i = ln Σ_j exp(s_ij), −∞ where nothing is visible",
    needs=("return_lse",),
    dtypes="all",
    features=("window_size", "softcap", "alibi_slopes", "kv_lengths"),
    zero_sizes=False,
)
def lse_is_the_log_of_the_sum(t: Trial) -> None:
    """The log-sum-exp that is returned is natural, scaled, and −∞ for a row without keys."""
    run, lse, unit = t.run_lse()
    exact = run.exact.lse
    allowed = bound.lse_bound(run.exact, t.arithmetic)
    if unit > 2.0 ** -FLOAT_TYPES[t.case.dtype].precision:  # of a narrower type, in which it may be computed, logits rounded to it included
        narrow = next(one.name for one in FLOAT_TYPES.values() if 2.0**-one.precision == unit)
        errors = {"query_error": unit * np.abs(run.exact.problem.q), "key_error": unit * np.abs(run.exact.k)}
        allowed = np.maximum(allowed, bound.lse_bound(run.exact, arithmetic("same", narrow), **errors))
    allowed = allowed + unit * (np.abs(np.where(np.isfinite(exact), exact, 0.0)) + allowed)  # stored in its own type
    t.close(lse[..., None], exact[..., None], allowed[..., None], "the log-sum-exp of row {row} is off")


@declare("out(return_lse) = out(not return_lse)", needs=("return_lse",), features=("window_size", "softcap"))
def lse_does_not_change_the_output(t: Trial) -> None:
    """Asking for the log-sum-exp does not change the output."""
    agree(t, t.run(), t.run_lse()[0], "row {row} depends on return_lse")


DROPPED: dict[str, Any] = {
    "queries": (2, 3, 5),
    "keys": (64, 80, 128),
    "dim": (4, 8),
    "batch": (1, 2),
    "kv_heads": (2, 3),
    "scale": None,
    "values": ("normal", "simple"),
    "magnitude": 0,
    "is_causal": False,
    "dtype": ("float64", "float32"),
    **PLAIN,
}
RATES = (0.5, 0.75)  # probability of a dropped weight: w/(1 − p) = 2w or 4w is exact


def rate(t: Trial) -> float:
    """The probability of a dropped weight in this trial."""
    return RATES[t.choice("rate", len(RATES))]


def dropping(t: Trial, call: int = 0) -> Inputs:
    """The call of the trial under dropout; other calls start from other random numbers."""
    return t.inputs.but(dropout=rate(t), chance=t.case.seed + call)


def dropped(t: Trial) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights under dropout, those without, and the bound of the latter (B, H, L, S)."""
    plain = t.weights()
    return t.weights(dropping(t)).out, plain.out, plain.bound


@declare("out = Σ_j w_ij·b_ij / (1 − p)·v_j,  b_ij ∈ {0, 1}", needs=("dropout_p", "value_dim"), **DROPPED)
def dropout_drops_or_rescales(t: Trial) -> None:
    """Each weight is dropped, or divided by 1 − p so that the mean is kept: nothing else."""
    read, plain, allowed = dropped(t)
    factor = 1 / (1 - rate(t))
    t.close(
        read,
        factor * plain,
        2 * factor * allowed,
        "in row {row} the weight of key {column} is neither dropped nor divided by 1 − p",
        read != 0,
    )


@declare("P(b_ij = 1) = 1 − p", needs=("dropout_p", "value_dim"), **DROPPED)
def dropout_keeps_its_share(t: Trial) -> None:
    """As many weights are kept as the probability says; of a right dropout one case in 1e12 errs (Hoeffding 1963)."""
    read, plain, _ = dropped(t)
    positive = plain > 0
    nonzero, count = ((read != 0) & positive).sum(), positive.sum()
    slack = np.sqrt(count * np.log(2e12) / 2)
    t.close(np.array([nonzero]), np.array([(1 - rate(t)) * count]), np.array([slack]), "the share of the weights that are kept is off")


@declare("b of one head, or of one call, is independent of b of another", needs=("dropout_p", "value_dim"), **DROPPED)
def dropout_is_not_shared(t: Trial) -> None:
    """Rows, heads, batch elements and calls drop different keys, and no pattern repeats along them.

    Of 64 or more weights, two patterns alike come once in 10^13; of 128 pairs, one period once in 10^15.
    """
    read, plain, _ = dropped(t)
    patterns = (read != 0).reshape(-1, plain.shape[-1])
    positive = np.atleast_1d((plain > 0).reshape(patterns.shape).all(axis=0))
    if positive.sum() >= 64 and len(np.unique(patterns[:, positive], axis=0)) < len(patterns):
        t.fail("two rows of the attention matrix drop the very same keys")
    if positive.sum() >= 64 and np.array_equal(read != 0, t.weights(dropping(t, call=1)).out != 0):
        t.fail("two calls drop the very same keys")
    for period in range(1, len(positive) // 2 + 1):
        both = positive[period:] & positive[:-period]
        if len(patterns) * both.sum() >= 128 and np.array_equal(patterns[:, period:][:, both], patterns[:, :-period][:, both]):
            t.fail(f"what is dropped repeats every {period} keys")


@declare("p = 0  ⇒  out = out without dropout, whatever was dropped before", needs=("dropout_p",), **{**DROPPED, "keys": (2, 3, 64)})
def dropout_of_zero_drops_nothing(t: Trial) -> None:
    """With p = 0, as in evaluation, nothing is dropped; dropping before does not change that, nor does it stop what comes after."""
    plain, first, again = t.run(), t.run(dropping(t)), t.run(dropping(t))
    agree(t, t.run(t.inputs.but(explicit=True)), plain, "row {row} is another one where dropout_p is 0")
    agree(t, t.run(), plain, "row {row} is another one after a call with dropout")
    if np.array_equal(first.out, again.out):  # what is dropped follows the seed, not a generator of the target's own
        t.same_bits(
            t.run(dropping(t)).out, first.out, "row {row} of the same call from the same seed is another one after a call without dropout"
        )
