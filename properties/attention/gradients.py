"""Gradients: what a loss on the output sends back to queries, keys, values and an additive mask.

    dP = dO Vᵀ    δ_i = Σ_j P_ij dP_ij    dS = P (dP − δ)    dQ = scale·dS K    dK = scale·dSᵀ Q    dV = Pᵀ dO    dbias = dS

(Dao et al., FlashAttention, 2022, appendix B.2.) Only targets are asked whose output carries a gradient.
"""

import numpy as np

from ..engine.cases.grad_output import GRAD_LAYOUTS, GRADS, make_grad
from ..engine.cases.masks import MASK_AXES
from ..engine.cases.regimes import REGIMES
from ..exact.gradient_oracle import over_groups, sum_to
from .backward import OPERANDS, Backward, refusal, run_backward
from .common import coarse, live, size
from .contract import declare
from .masks import HIDING, hidden_from_all
from .trial import Trial

MANY = ("normal", "normal", *GRADS)  # forms of dO
OFTEN_PLAIN = ("contiguous",) * 6 + GRAD_LAYOUTS[1:]
BIASED = ("bias", "bias_and_minus_infinity")
SUMMED = ("normal", *(name for name in REGIMES if name not in ("normal", "limits")))  # sums of which stay finite
FEATURES = ("window_size", "softcap", "alibi_slopes", "sinks", "kv_lengths")  # where the target takes them
NO_SINKS = tuple(name for name in FEATURES if name != "sinks")
TAME = ("normal", "simple", "near_ties", "positive")  # nothing overflows, no weight underflows


def inside(t: Trial, run: Backward, names: tuple[str, ...] = OPERANDS) -> None:
    """These gradients lie inside their bounds."""
    for name in names:
        run.inside(name, f"the gradient of {name} is off at row {{row}}, feature {{column}}")


def agree(t: Trial, one: Backward, other: Backward, says: str, names: tuple[str, ...] = OPERANDS) -> None:
    """Two ways to the same gradients: both lie inside both bounds."""
    for name in names:
        allowed = getattr(one.limits, name) + getattr(other.limits, name)
        t.close(getattr(one, name), getattr(other, name), allowed, says.replace("NAME", name))


def same(t: Trial, one: Backward, other: Backward, says: str, where: np.ndarray | bool = True) -> None:
    """Two ways to the same gradients, bit for bit."""
    for name in OPERANDS:
        t.same_bits(getattr(one, name), getattr(other, name), says.replace("NAME", name), where)


def rounding(size: np.ndarray, terms: int) -> np.ndarray:
    """What a sum of so many float64 terms may lose, from the sum of their magnitudes."""
    return (terms + 2) * 2.0**-52 * size


@declare(
    "|dQ − exact|, |dK − exact|, |dV − exact| ≤ E",
    needs=("gradients",),
    dtypes="all",
    grad=MANY,
    grad_layout=OFTEN_PLAIN,
    zero_sizes=False,
    at_least={"keys": 2},
    features=FEATURES,
    models=2,
)
def gradients_are_inside_the_bound(t: Trial) -> None:
    """Every element of the gradients of queries, keys and values is as near to the exact one as the arithmetic promises."""
    inside(t, run_backward(t))


@declare(
    "|dbias − exact| ≤ E",
    needs=("bias_gradients", "attn_mask"),
    dtypes="all",
    grad=MANY,
    grad_layout=OFTEN_PLAIN,
    mask_kind=(*BIASED, *BIASED, "minus_infinity"),
    zero_sizes=False,
    at_least={"keys": 2},
    features=FEATURES,
)
def bias_gradient_is_inside_the_bound(t: Trial) -> None:
    """The gradient of an additive mask is the gradient of the logits, summed over what the mask was broadcast to."""
    inside(t, run_backward(t, wrt=("mask",)), ("mask",))


@declare("dK, dV, dQ exist, in the form of k, v, q", needs=("gradients",), dtypes="all", exact=True, grad=("normal", "ones"))
def gradients_reach_every_input(t: Trial) -> None:
    """Queries, keys and values all receive a gradient, of their own shape, dtype and device."""
    run = run_backward(t)
    for name, part in run.parts.items():
        form = t.target.framework.describe(part)
        if form != (wanted := (getattr(t.inputs, name).shape, t.case.dtype, t.case.device)):
            t.fail(f"the gradient of {name} is {form}, expected {wanted}")


@declare(
    "j hidden from all  ⇒  dk_j = dv_j = 0",
    needs=("gradients",),
    exact=True,
    grad=MANY,
    values=TAME,
    mask_kind=HIDING,
    mask_axes=("S", "BS", "LS", "BHS", "BLS", "HS"),
    features=FEATURES,
)
def hidden_keys_receive_no_gradient(t: Trial) -> None:
    """The gradients of a key that no query sees, and of its value, are exactly zero."""
    run, hidden = run_backward(t), hidden_from_all(t)[..., None]
    if t.empty_rows != "zero":
        hidden = hidden & live(t).all(axis=(1, 2, 3), keepdims=True)
    t.same_bits(np.asarray(run.k), np.zeros(run.k.shape), "key {row} is hidden from all and receives a gradient", hidden)
    t.same_bits(np.asarray(run.v), np.zeros(run.v.shape), "the value of the hidden key {row} receives a gradient", hidden)


@declare(
    "dV = Aᵀ dO, A read through V = I",
    needs=("gradients",),
    grad=MANY,
    values=SUMMED,
    zero_sizes=False,
    queries=(1, 2, 3, 3, 3, 4, 5, 17),
    keys=(1, 2, 3, 3, 3, 3, 4, 5, 7, 8, 16, 17, 33),
    features=FEATURES,
)
def value_gradient_reads_the_weights(t: Trial) -> None:
    """The gradient of a value is the sum of the output's gradients, with the weights that its rows give its key."""
    run, weights, kv_heads = run_backward(t), t.weights(), t.inputs.k.shape[1]
    grad, read = run.grad_out, np.nan_to_num(weights.out)
    expected = over_groups(read.swapaxes(-1, -2) @ grad, kv_heads)
    terms = over_groups(size(read).swapaxes(-1, -2) @ np.abs(grad), kv_heads)
    slack = over_groups(weights.bound.swapaxes(-1, -2) @ np.abs(grad), kv_heads)
    allowed = run.limits.v + slack + rounding(terms, t.inputs.shape[2] * t.inputs.group)
    t.close(run.v, expected, np.where(np.isnan(allowed), np.inf, allowed), "the gradient of value {row} is not what its weights give")


@declare(
    "gradients(2ᵃ·dO) = 2ᵃ·gradients(dO)",
    needs=("gradients",),
    exact=True,
    values=TAME,
    magnitude=0,
    dtype=("float64", "float32"),
    scale=(None, None, 0.5),
    grad=("normal", "ones", "positive", "simple"),
)
def gradients_scale_with_the_output_gradient(t: Trial) -> None:
    """Multiplying the gradient of the output by a power of two multiplies all gradients by it, exactly."""
    factor, grad = (0.25, 2.0, 8.0)[t.choice("power", 3)], coarse(make_grad(t.case, (*t.inputs.shape[:3], t.inputs.v.shape[3])))
    one, more = run_backward(t, grad_out=grad), run_backward(t, grad_out=factor * grad)
    for name in OPERANDS:
        t.same_bits(getattr(more, name), factor * getattr(one, name), f"the gradient of {name} is not linear in that of the output")


@declare("gradients(dO + dO') = gradients(dO) + gradients(dO')", needs=("gradients",), values=("normal", "one_hot", "simple"))
def gradients_add_up(t: Trial) -> None:
    """The gradients are linear in the gradient of the output."""
    shape = (*t.inputs.shape[:3], t.inputs.v.shape[3])
    one, two = coarse(make_grad(t.case, shape)), coarse(t.noise("other gradient", shape))
    first, second, both = (run_backward(t, grad_out=grad) for grad in (one, two, one + two))
    for name in OPERANDS:
        parts = [getattr(run, name) for run in (first, second)]
        allowed = sum(getattr(run.limits, name) for run in (first, second, both)) + rounding(size(parts[0]) + size(parts[1]), 2)
        t.close(getattr(both, name), sum(parts), allowed, f"the gradient of {name} is not linear in that of the output, row {{row}}")


@declare(
    "Σ_j dbias_ij = 0",
    needs=("bias_gradients", "attn_mask"),
    mask_kind=BIASED,
    grad=MANY,
    values=SUMMED,
    zero_sizes=False,
    mask_axes=tuple(axes for axes in MASK_AXES if "S" in axes),
    at_least={"keys": 2},
    features=NO_SINKS,
)
def bias_gradient_rows_sum_to_zero(t: Trial) -> None:
    """A number added to all logits of a row changes nothing, so the gradient of the bias sums to zero along the keys."""
    run = run_backward(t, wrt=("mask",))
    grad = np.asarray(run.mask)
    allowed = run.limits.of_bias(grad.shape).sum(-1) + rounding(size(grad).sum(-1), grad.shape[-1])
    total = grad.sum(-1)
    shape = (1,) * (4 - total.ndim) + total.shape
    t.close(total.reshape(shape), 0.0, allowed.reshape(shape), "the gradient of the bias does not sum to zero")


@declare(
    "Σ_j dk_j = 0",
    needs=("gradients",),
    grad=MANY,
    values=SUMMED,
    at_least={"keys": 2},
    features=("window_size", "alibi_slopes", "kv_lengths"),
)
def key_gradients_sum_to_zero(t: Trial) -> None:
    """Moving all keys by the same vector changes nothing, so the gradients of the keys sum to zero."""
    run = run_backward(t)
    allowed = run.limits.k.sum(2, keepdims=True) + rounding(size(run.k).sum(2, keepdims=True), t.inputs.shape[3])
    t.close(run.k.sum(2, keepdims=True), 0.0, allowed, "the gradients of the keys of head {head} do not sum to zero")


@declare("Σ_j dv_j = Σ_i dO_i over the rows that see a key", needs=("gradients",), grad=MANY, values=SUMMED)
def value_gradients_sum_to_the_output_gradient(t: Trial) -> None:
    """The weights of a row sum to one, so the values together receive what the rows that see a key have to give."""
    run, kv_heads = run_backward(t), t.inputs.k.shape[1]
    grad = np.where(live(t), run.grad_out, 0.0)
    given, terms = (over_groups(x.sum(2, keepdims=True), kv_heads) for x in (grad, np.abs(grad)))
    allowed = run.limits.v.sum(2, keepdims=True) + rounding(terms, t.inputs.shape[2] * t.inputs.group)
    allowed = allowed + rounding(size(run.v).sum(2, keepdims=True), t.inputs.shape[3])
    t.close(run.v.sum(2, keepdims=True), given, allowed, "the values of head {head} receive more or less than their rows give")


@declare("⟨dV, V⟩ = ⟨dO, out⟩", needs=("gradients",), grad=MANY, values=SUMMED, features=FEATURES)
def values_and_outputs_balance(t: Trial) -> None:
    """The output is linear in the values: forward and backward pass use the same weights."""
    run, kv_heads = run_backward(t), t.inputs.k.shape[1]
    grad, axes = np.where(live(t), run.grad_out, 0.0), (2, 3)
    out = np.where(live(t), run.out, 0.0)
    back, forth = (run.v * t.inputs.v).sum(axes), over_groups((grad * out).sum(axes), kv_heads)
    terms = size(run.v * t.inputs.v).sum(axes) + over_groups(size(grad * out).sum(axes), kv_heads)
    allowed = (run.limits.v * np.abs(t.inputs.v)).sum(axes) + over_groups((np.abs(grad) * run.bound).sum(axes), kv_heads)
    balance(t, back, forth, allowed + rounding(terms, run.v.size + out.size), "⟨dV, V⟩ is not ⟨dO, out⟩ in head {head} of batch {batch}")


@declare("⟨dQ, Q⟩ = ⟨dK, K⟩", needs=("gradients",), grad=MANY, values=SUMMED, at_least={"keys": 2}, features=FEATURES)
def queries_and_keys_balance(t: Trial) -> None:
    """The logits are linear in the queries and in the keys alike: what one gains by being longer, the other does."""
    run, kv_heads, axes = run_backward(t), t.inputs.k.shape[1], (2, 3)
    q, k = t.inputs.q, t.inputs.k
    one, other = over_groups((run.q * q).sum(axes), kv_heads), (run.k * k).sum(axes)
    terms = over_groups(size(run.q * q).sum(axes), kv_heads) + size(run.k * k).sum(axes)
    allowed = over_groups((run.limits.q * np.abs(q)).sum(axes), kv_heads) + (run.limits.k * np.abs(k)).sum(axes)
    balance(t, one, other, allowed + rounding(terms, q.size + k.size), "⟨dQ, Q⟩ is not ⟨dK, K⟩ in head {head} of batch {batch}")


def balance(t: Trial, one: np.ndarray, other: np.ndarray, allowed: np.ndarray, says: str) -> None:
    """Two numbers for every batch element and head agree; nothing is claimed where 0 met an infinite bound."""
    one, other, allowed = (x[..., None, None] for x in (one, other, allowed))
    t.close(one, other, np.where(np.isnan(allowed), np.inf, allowed), says)


@declare(
    "d k_h = Σ over the query heads of group h",
    needs=("gradients", "enable_gqa"),
    group=(2, 3, 4),
    kv_heads=(1, 2, 2, 3),
    grad=MANY,
    values=SUMMED,
    zero_sizes=False,
    features=FEATURES,
)
def grouped_gradients_are_summed(t: Trial) -> None:
    """A key/value head that several query heads share receives the sum of what each of them would send to its own copy."""
    run, group, kv_heads = run_backward(t), t.inputs.group, t.inputs.k.shape[1]
    repeated = run_backward(t, t.inputs.but(k=np.repeat(t.inputs.k, group, axis=1), v=np.repeat(t.inputs.v, group, axis=1)))
    for name in ("k", "v"):
        parts, limits = getattr(repeated, name), getattr(repeated.limits, name)
        allowed = getattr(run.limits, name) + over_groups(limits, kv_heads) + rounding(over_groups(size(parts), kv_heads), group)
        t.close(
            getattr(run, name),
            over_groups(parts, kv_heads),
            allowed,
            f"the gradient of {name}, head {{head}}, is not the sum over its group",
        )


@declare(
    "dbias = Σ over what bias was broadcast to",
    needs=("bias_gradients", "attn_mask"),
    widens=True,
    mask_kind=(*BIASED, "bias"),
    mask_axes=("S", "L", "LS", "BS", "HS", "BL", "HLS", "BLS", "BH", ""),
    mask_rank=(0, 0, 1, 2, 3, 4),
    grad=MANY,
    values=SUMMED,
    batch=(1, 2, 3),
    kv_heads=(1, 2, 3),
    zero_sizes=False,
)
def broadcast_bias_gradient_is_summed(t: Trial) -> None:
    """A mask of size 1 along an axis receives the sum of what the mask receives that is written out in full."""
    mask = np.asarray(t.inputs.mask)
    full = t.written_out()
    one, other = run_backward(t, wrt=("mask",)), run_backward(t, t.inputs.but(mask=full), wrt=("mask",))
    expected, terms = sum_to(other.mask, mask.shape), sum_to(size(other.mask), mask.shape)
    allowed = one.limits.of_bias(mask.shape) + sum_to(other.limits.of_bias(full.shape), mask.shape) + rounding(terms, full.size)
    shape = (1,) * (4 - mask.ndim) + mask.shape
    t.close(
        np.asarray(one.mask).reshape(shape),
        expected.reshape(shape),
        allowed.reshape(shape),
        "the gradient of the bias is not the sum over what it was broadcast to",
    )


@declare(
    "gradients(view of dO) = gradients(copy of dO)",
    needs=("gradients", "layouts"),
    grad_layout=GRAD_LAYOUTS[1:],
    grad=MANY,
    batch=(1, 2, 2, 3),
    keys=(1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 65),
)
def layout_of_the_output_gradient_changes_nothing(t: Trial) -> None:
    """Strides of the output's gradient do not matter, those of 0 included, which out.sum().backward() has."""
    view, copy = run_backward(t), run_backward(t, layout="contiguous")
    agree(t, view, copy, f"row {{row}} of the gradient of NAME differs where that of the output is {t.case.grad_layout}")


@declare(
    "dO_i = 0 ⇒ dQ_i = 0;  dO = 0 ⇒ dK = dV = 0",
    needs=("gradients",),
    exact=True,
    values=TAME,
    grad=("zero", "one_row", "one_hot", "simple"),
)
def nothing_comes_of_nothing(t: Trial) -> None:
    """A row whose output has no gradient sends none back, exactly; if no row has one, nothing receives any."""
    run = run_backward(t)
    silent = ~run.grad_out.any(axis=-1, keepdims=True) & (live(t) if t.empty_rows != "zero" else True)
    for name in OPERANDS if silent.all() else ("q",):
        part, limit = np.asarray(getattr(run, name)), getattr(run.limits, name)
        t.same_bits(
            part,
            np.zeros(part.shape),
            f"row {{row}} of {name} receives a gradient out of nothing",
            np.isfinite(limit) & (silent if name == "q" else True),
        )  # infinite: a score may overflow, and 0 · NaN is NaN


@declare(
    "no visible key for i ⇒ dQ_i = 0, and no NaN elsewhere",
    needs=("gradients", "attn_mask"),
    grad=MANY,
    mask=("empty_rows", "nothing", "band", "random"),
    mask_kind=HIDING,
    mask_axes=("LS", "S", "BLS", "HLS", "BHLS", "BS", "HS", "L", "BH", ""),
    keys=(1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 65),
    features=("window_size", "kv_lengths"),
)
def rows_without_keys_poison_no_gradient(t: Trial) -> None:
    """A row that sees no key receives no gradient and sends none; the gradients of all others are what they should be."""
    run = run_backward(t, poisoned=True)
    if t.empty_rows == "zero":
        t.same_bits(
            np.asarray(run.q), np.zeros(run.q.shape), "row {row} sees no key and receives a gradient", ~live(t) & np.isfinite(run.limits.q)
        )
    inside(t, run)


@declare("gradients of q alone = gradients of q among all", needs=("gradients",), grad=MANY, mask_kind=(*HIDING, *BIASED), zero_sizes=False)
def each_gradient_can_be_asked_alone(t: Trial) -> None:
    """Which of the inputs ask for a gradient does not change the gradients of those that do."""
    names: tuple[str, ...] = OPERANDS
    if t.inputs.bias() is not None and not refusal(t.target, "bias_gradients"):
        names = ("mask", *OPERANDS)
    alone = names[max(t.choice("alone", 6) - 6 + len(names), 0)]  # the mask three times in six
    one, other = run_backward(t, wrt=(alone,)), run_backward(t, wrt=names)
    if alone == "mask":
        shape = (1,) * (4 - one.mask.ndim) + one.mask.shape
        allowed = one.limits.of_bias(one.mask.shape) + other.limits.of_bias(one.mask.shape)
        t.close(one.mask.reshape(shape), other.mask.reshape(shape), allowed.reshape(shape), "the mask alone receives another gradient")
    else:
        agree(t, one, other, "row {row} of the gradient of NAME is another one where nothing else asks for one", (alone,))


@declare("backward; backward; forward, backward: the same", needs=("gradients",), exact=True, grad=MANY, grad_layout=OFTEN_PLAIN)
def same_gradients_every_time(t: Trial) -> None:
    """The same call gives the same gradients, bit for bit, and so does the same graph when it is differentiated again."""
    first = run_backward(t)
    same(t, run_backward(t), first, "row {row} of the gradient of NAME differs between two calls with the same arguments")
    same(t, run_backward(t, times=2), first, "row {row} of the gradient of NAME differs when the graph is differentiated twice")


@declare("forward(x); forward(y); backward of x = forward(x); backward of x", needs=("gradients",), exact=True, grad=MANY, zero_sizes=False)
def calls_in_between_change_no_gradient(t: Trial) -> None:
    """What a backward pass needs is kept for its own call: another forward pass in between changes no bit of the gradients."""
    x = t.inputs
    other = x.but(q=-x.q[..., ::-1], k=x.k[:, :, ::-1], v=-2 * x.v)
    same(
        t,
        run_backward(t, between=other),
        run_backward(t),
        "row {row} of the gradient of NAME changed with another call before the backward pass",
    )


@declare(
    "gradients of (b, h) depend on (b, h) alone",
    needs=("gradients",),
    exact=True,
    grad=MANY,
    layout="contiguous",
    batch=(1, 2, 2, 3),
    kv_heads=(1, 2, 2, 3),
    zero_sizes=False,
)
def gradients_stay_in_their_batch_element_and_head(t: Trial) -> None:
    """Other numbers in other batch elements and heads do not change a bit of the gradients here."""
    x, group = t.inputs, t.inputs.group
    here = np.zeros((*x.k.shape[:2], 1, 1), dtype=bool)
    here[t.choice("batch", len(here)), t.choice("head", here.shape[1])] = True
    rows, first = np.repeat(here, group, axis=1), run_backward(t)
    other = x.but(q=np.where(rows, x.q, -x.q[..., ::-1]), k=np.where(here, x.k, x.k[:, :, ::-1]), v=np.where(here, x.v, -2 * x.v))
    second = run_backward(t, other, np.where(rows, first.grad_out, 1.0))
    for name in OPERANDS:
        t.same_bits(
            getattr(second, name),
            getattr(first, name),
            f"row {{row}} of the gradient of {name} changed with another batch element or head",
            rows if name == "q" else here,
        )


@declare("out with gradients = out without", needs=("gradients",))
def asking_for_gradients_changes_no_output(t: Trial) -> None:
    """The output is the same whether or not a gradient is asked for."""
    plain, recorded = t.run(), run_backward(t)
    t.close(recorded.out, plain.out, plain.bound + recorded.bound, "row {row} of the output is another one where gradients are asked")
