"""Linear attention: a state of fixed size instead of a matrix of weights.

    out_i = φ(q_i)·S / φ(q_i)·z,   S = Σ_j φ(k_j) v_jᵀ,   z = Σ_j φ(k_j),   φ(x) = elu(x) + 1;   causal: j ≤ i

The weights φ(q_i)·φ(k_j) are positive: an output is a mean of the values, as under a softmax. (Katharopoulos et al., *Transformers are RNNs*, 2020.)
"""

import numpy as np

from ..engine.core.declare import declare
from .trial import LinearTrial

MANY = (2, 2, 3, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 33, 65)  # rows, or keys


@declare("|out_i − φ(q_i)·S / φ(q_i)·z| ≤ E", contract="linear", dtypes="all")
def linear_output_is_inside_the_bound(t: LinearTrial) -> None:
    """Every element is as near to the exact one as the arithmetic promises, in whatever order the state is summed."""
    run = t.run()
    t.inside(run, run.bound, "row {row} is off in head {head}")


@declare("min_j v_j ≤ out_i ≤ max_j v_j", contract="linear", keys=MANY)
def linear_output_stays_in_the_hull(t: LinearTrial) -> None:
    """The weights are nonnegative and sum to one: no output leaves the range of the values that it sees."""
    x, run = t.inputs, t.run()
    visible, v = t.visible(x)[:, :, None], x.v[:, :, None]  # (L, S, 1), (B, H, 1, S, Dv)
    t.at_least(run.out, np.where(visible, v, np.inf).min(3), run.bound, "row {row} is below all values that it sees")
    t.at_least(-run.out, np.where(visible, -v, np.inf).min(3), run.bound, "row {row} is above all values that it sees")


@declare("v_j = c  ⇒  out_i = c", contract="linear")
def linear_constant_values_are_returned(t: LinearTrial) -> None:
    """Where all values of a head are the same, every row returns it: numerator and normaliser sum the same weights."""
    x = t.inputs
    run = t.run(x.but(v=np.broadcast_to(x.v[:, :, :1], x.v.shape).copy()))
    t.close(run.out, np.broadcast_to(x.v[:, :, :1], run.out.shape), run.bound, "row {row} is not the value that all keys have")


@declare(
    "is_causal: out_i = the call with q_i and the keys j ≤ i",
    contract="linear",
    needs=("is_causal",),
    is_causal=True,
    queries=MANY,
    keys=MANY,
)
def causal_row_is_all_of_its_prefix(t: LinearTrial) -> None:
    """A causal row is what the row gives without causality on the keys up to it: the recurrent form is the parallel one."""
    x = t.inputs
    row = t.choice("row", t.case.queries)
    last = max(int(t.visible(x)[row].sum()), 1)
    whole, alone = t.run(), t.run(x.but(q=x.q[:, :, row : row + 1], k=x.k[:, :, :last], v=x.v[:, :, :last], is_causal=False))
    t.close(
        whole.out[:, :, row : row + 1],
        alone.out,
        whole.bound[:, :, row : row + 1] + alone.bound,
        f"row {row} of the causal call is another one than that of its {last} keys",
    )


@declare(
    "is_causal: out_i unchanged by k_j, v_j, j > i",
    contract="linear",
    exact=True,
    needs=("is_causal",),
    is_causal=True,
    keys=MANY,
    queries=MANY,
)
def linear_future_tokens_are_ignored(t: LinearTrial) -> None:
    """Keys and values from some token on do not change a bit of the rows before it."""
    x, visible = t.inputs, t.visible(t.inputs)
    later = np.arange(t.case.keys) >= 1 + t.choice("later", max(t.case.keys - 1, 1))
    other = x.but(k=np.where(later[:, None], -2 * x.k + 1, x.k), v=np.where(later[:, None], x.v + 64, x.v))
    t.same_bits(t.run(other).out, t.run().out, "row {row} changed with tokens after it", ~np.any(visible & later, axis=-1, keepdims=True))


@declare("out(q, k_σ, v_σ) = out(q, k, v)", contract="linear", keys=MANY, is_causal=False)
def linear_permuted_keys_change_nothing(t: LinearTrial) -> None:
    """The state is a sum: the order of the keys, together with their values, does not matter."""
    x, order = t.inputs, t.permutation("keys", t.case.keys)
    plain, moved = t.run(), t.run(x.but(k=x.k[:, :, order], v=x.v[:, :, order]))
    t.close(moved.out, plain.out, moved.bound + plain.bound, "row {row} depends on the order of the keys")


@declare("out[b, h] depends on q, k, v[b, h] alone", contract="linear", exact=True, batch=(1, 2, 3), heads=(2, 2, 3), layout="contiguous")
def states_are_not_shared(t: LinearTrial) -> None:
    """Other numbers in all other batch elements and heads do not change a bit of this one."""
    x = t.inputs
    here = np.zeros((t.case.batch, t.case.heads, 1, 1), dtype=bool)
    here[t.choice("element", t.case.batch), t.choice("head", t.case.heads)] = True
    other = x.but(q=np.where(here, x.q, -x.q), k=np.where(here, x.k, 1 - 2 * x.k), v=np.where(here, x.v, x.v + 64))
    t.same_bits(t.run(other).out, t.run().out, "row {row} of batch element {batch}, head {head} changed with another one", here)


@declare("shape, dtype, device; arguments and answers after = before; twice the same bits", contract="linear", exact=True, dtypes="all")
def linear_output_has_the_right_form(t: LinearTrial) -> None:
    """The output has the type and device of the queries, the arguments are left alone, as are earlier answers; the same call gives the same bits."""
    first = t.run()
    _, dtype, device = t.form
    if (dtype, device) != (t.case.dtype, t.case.device):
        t.fail(f"returned {dtype} on {device}, expected {t.case.dtype} on {t.case.device}")
    for name, held in t.buffers.contents():
        if not np.array_equal(held, getattr(t.inputs, name)):
            t.fail(f"{name} was changed by the call")
    t.same_bits(t.run().out, first.out, "the same call gave different bits at row {row}")
    t.stays(t.own, lambda: t.run(t.inputs.but(v=-t.inputs.v)))
