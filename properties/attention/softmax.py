"""Softmax: the weights of a row are a probability distribution over the keys that the row can see.

    w_ij = exp(s_ij) / Σ_j exp(s_ij),    s_ij = scale · q_i·k_j + bias_ij

A black box shows its weights through its values: for V = 1 it returns their sum, for V = I the weights themselves.
"""

import numpy as np

from ..exact import bound
from .common import coarse, live, mean_of_visible
from .contract import declare
from .tables import SHORT
from .trial import Trial


@declare("Σ_j w_ij = 1")
def rows_sum_to_one(t: Trial) -> None:
    """The weights of a row sum to one: values that are all 1 come out as 1."""
    run = t.run(t.inputs.but(v=np.ones_like(t.inputs.v)))
    t.close(run.out, 1.0, run.bound, "the weights of row {row} do not sum to 1", live(t))


@declare(
    "returned w_ij = exp(s_ij) / Σ_j exp(s_ij)",
    needs=("need_weights",),
    dtypes="all",
    features=("window_size", "softcap"),
    queries=SHORT,
    keys=SHORT,
    zero_sizes=False,
)
def returned_weights_are_those_applied(t: Trial) -> None:
    """The weights that come back beside the output are those that it was made with: scaled, masked and normalised.

    Where they are their mean over H heads: H − 1 additions and a division of numbers that are not negative, each rounded once, in the type
    in which they come or a wider one (Higham 2002, section 4.2).
    """
    run, weights, unit = t.run_returned_weights()
    exact = run.exact.weights
    seen = live(t)
    allowed = bound.weights_bound(run.exact, t.arithmetic)
    roundings = 1
    if t.supports.returned_weights == "mean" and t.inputs.shape[1]:
        roundings = 1 + t.inputs.shape[1]
        exact, allowed, seen = exact.mean(1, keepdims=True), allowed.mean(1, keepdims=True), np.asarray(seen.all(1, keepdims=True))
    allowed = allowed + np.expm1(roundings * np.log1p(unit)) * (np.abs(exact) + allowed)  # stored in their own type
    t.close(weights, exact, allowed, "the weight of key {column} in row {row} that is returned is off", seen)


@declare("w_ij ≥ 0", keys=SHORT, queries=SHORT, zero_sizes=False)
def weights_are_not_negative(t: Trial) -> None:
    """No weight is negative."""
    read = t.weights()
    slack = np.where(read.bound == np.inf, np.inf, 0.0)
    t.at_least(read.out, 0.0, slack, "the weight of key {column} in row {row} is negative", live(t))


@declare("softmax(s + c) = softmax(s),  c = q_i·u when every key is shifted by u", values="normal")
def shifted_logits_change_nothing(t: Trial) -> None:
    """Adding the same vector to every key shifts all the logits of a row alike, and changes nothing."""
    near = t.inputs.but(q=coarse(t.inputs.q), k=coarse(t.inputs.k))
    shift = coarse(2 * t.noise("shift", near.k[:, :, :1].shape))
    plain, shifted = t.run(near), t.run(near.but(k=near.k + shift))
    t.close(shifted.out, plain.out, plain.bound + shifted.bound, "row {row} changed when its logits were shifted")


@declare(
    "softmax(s + c) = softmax(s),  c_i added to the bias of row i",
    needs=("attn_mask",),
    mask="random",
    mask_kind=("bias", "bias_and_minus_infinity"),
    values="normal",
)
def shifted_bias_changes_nothing(t: Trial) -> None:
    """Adding one number to the whole additive mask of a row changes nothing."""
    assert t.inputs.mask is not None
    bias = np.where(t.inputs.mask == -np.inf, -np.inf, coarse(np.maximum(t.inputs.mask, -4)))
    height = bias.shape[-2] if bias.ndim > 1 else 1
    shift = coarse(2 * t.noise("shift", (height, 1)))
    plain, shifted = t.run(t.inputs.but(mask=bias)), t.run(t.inputs.but(mask=bias + (shift if bias.ndim > 1 else shift[0])))
    t.close(shifted.out, plain.out, plain.bound + shifted.bound, "row {row} changed when its bias was shifted")


@declare("s_ij ≥ s_ik  ⇒  w_ij ≥ w_ik", keys=SHORT, queries=SHORT, zero_sizes=False)
def larger_logit_larger_weight(t: Trial) -> None:
    """Of two keys of a row, the one with the larger logit has the larger weight."""
    read = t.weights()
    order = np.argsort(read.parts[0].exact.logits, axis=-1)
    weight, slack = np.take_along_axis(read.out, order, -1), np.take_along_axis(read.bound, order, -1)
    t.at_least(
        weight[..., 1:], weight[..., :-1], slack[..., 1:] + slack[..., :-1], "in row {row} a larger logit has a smaller weight", live(t)
    )


@declare(
    "s_ij − s_ik → ∞ for all k ≠ j  ⇒  out_i = v_j",
    scale=(None, 1.0, 0.5),
    values=("normal", "wide"),
    magnitude=0,
    mask_kind=("bool", "minus_infinity"),
    dim=(1, 2, 3, 4, 8, 16, 17),
    zero_sizes=False,
)
def one_key_takes_all(t: Trial) -> None:
    """A key whose logit is far above the others' takes all the weight: its value is the output."""
    keys = t.inputs.shape[3]
    winner = t.choice("winner", keys)
    gap = 1024.0 if t.case.dtype == "float64" else 128.0  # exp(-750) is 0 in float64, exp(-110) in float32
    reach = 2.0 ** np.ceil(np.log2(gap / (t.inputs.effective_scale * t.inputs.q.shape[3])))
    sign = np.where(np.arange(keys) == winner, 1.0, -1.0)[:, None]
    inputs = t.inputs.but(q=1 + np.abs(coarse(t.inputs.q)) / 4, k=np.broadcast_to(sign * reach, t.inputs.k.shape))
    run = t.run(inputs)
    value = np.repeat(inputs.v[:, :, winner : winner + 1], inputs.group, axis=1)
    t.close(
        run.out,
        value,
        run.bound,
        f"row {{row}} is not the value of key {winner}, which has all the weight",
        t.visible(inputs)[..., winner, None],
    )


@declare("q = 0  ⇒  out_i = mean of the visible v_j", mask_kind=("bool", "minus_infinity"))
def equal_logits_share_equally(t: Trial) -> None:
    """Keys with equal logits share the weight equally: a zero query returns the mean of the visible values."""
    run = t.run(t.inputs.but(q=np.zeros_like(t.inputs.q)))
    mean, rounding = mean_of_visible(t)
    t.close(run.out, mean, run.bound + rounding, "row {row} is not the mean of the values it sees", live(t))


@declare(
    "scale → ∞  ⇒  out_i = v of the largest q_i·k_j",
    needs=("scale",),
    scale=1024.0,
    values="simple",
    magnitude=0,
    dim=(1, 2, 3, 4, 5, 6, 7, 8),
    mask_kind=("bool", "minus_infinity"),
)
def huge_scale_picks_the_maximum(t: Trial) -> None:
    """A huge scale picks the key with the largest dot product, and shares equally between ties."""
    run = t.run()
    dots = np.einsum("bhld,bhsd->bhls", t.inputs.q, np.repeat(t.inputs.k, t.inputs.group, axis=1))  # exact: small numbers
    dots = np.where(t.visible(), dots, -np.inf)
    best = (dots == dots.max(axis=-1, initial=-np.inf, keepdims=True)) & t.visible()
    mean, rounding = mean_of_visible(t, best)
    rest = np.exp(-1024 / 4) * 2 * t.inputs.shape[3] * np.abs(t.inputs.v).max(initial=0.0)  # dots are 1/4 apart at least
    t.close(run.out, mean, run.bound + rounding + rest, "row {row} is not the value of its best key", live(t))


@declare("scale = 0  ⇒  out_i = mean of the visible v_j", needs=("scale",), scale=(0.0, -0.0), mask_kind=("bool", "minus_infinity"))
def zero_scale_averages(t: Trial) -> None:
    """Scale 0 makes all logits equal: the output is the mean of the visible values."""
    run = t.run()
    mean, rounding = mean_of_visible(t)
    t.close(run.out, mean, run.bound + rounding, "row {row} is not the mean of the values it sees", live(t))


@declare(
    "S = 1  ⇒  out_i = v_1",
    keys=(1,),
    exact=True,
    mask="none",
    values=("normal", "wide", "heavy", "simple", "one_hot"),
    zero_sizes=False,
    arithmetic=lambda a: not (a.u_mul or a.stored),
)  # tf32 rounds the value on its way in; exp(s)·v is stored
def a_single_key_gives_its_value(t: Trial) -> None:
    """A row with one key returns its value, bit for bit: exp(0) = 1, in any arithmetic that keeps its operands."""
    value = np.repeat(t.inputs.v, t.inputs.group, axis=1)
    t.same_bits(
        t.run().out,
        np.broadcast_to(value, (*t.inputs.shape[:3], value.shape[3])),
        "row {row} does not return the value of its only key",
        live(t),
    )
