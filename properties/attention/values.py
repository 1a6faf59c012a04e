"""Values: the output of a row is the weighted mean of the values, feature by feature.

    out_id = Σ_j w_ij v_jd

So it is linear in V, lies between the smallest and the largest visible value, and mixes no two features.
"""

import numpy as np

from ..engine.core.supports import FEATURES
from .common import coarse, live, size
from .contract import declare
from .trial import Trial


@declare("min_j v_jd ≤ out_id ≤ max_j v_jd over the visible j")
def output_stays_in_the_hull_of_values(t: Trial) -> None:
    """No output lies outside the range of the values that its row sees."""
    run, group = t.run(), t.inputs.group
    visible = t.visible()[..., None]  # (B, H, L, S, 1)
    value = np.repeat(t.inputs.v, group, axis=1)[:, :, None]  # (B, H, 1, S, Dv)
    low = np.where(visible, value, np.inf).min(axis=3, initial=np.inf)
    high = np.where(visible, value, -np.inf).max(axis=3, initial=-np.inf)
    t.at_least(run.out, low, run.bound, "row {row} is below every value it sees", live(t))
    t.at_least(-run.out, -high, run.bound, "row {row} is above every value it sees", live(t))


@declare("v_j = c  ⇒  out_i = c")
def constant_values_are_returned(t: Trial) -> None:
    """If all keys carry the same value, that value is the output."""
    constant = np.broadcast_to(t.noise("constant", t.inputs.v[:, :, :1].shape) * 3, t.inputs.v.shape)
    inputs = t.inputs.but(v=constant)
    run = t.run(inputs)
    expected = np.broadcast_to(np.repeat(inputs.v, inputs.group, axis=1)[:, :, :1], run.out.shape) if inputs.v.size else 0.0
    t.close(run.out, expected, run.bound, "row {row} is not the value that all its keys carry", live(t))


@declare("out(V + 2W) = out(V) + 2·out(W)", values="normal")
def output_is_linear_in_values(t: Trial) -> None:
    """The output is linear in the values."""
    v, w = coarse(t.inputs.v), coarse(t.noise("other values", t.inputs.v.shape))
    one, two, both = t.run(t.inputs.but(v=v)), t.run(t.inputs.but(v=w)), t.run(t.inputs.but(v=v + 2 * w))
    allowed = both.bound + one.bound + 2 * two.bound + 2.0**-51 * (size(one.out) + size(two.out))
    t.close(both.out, one.out + 2 * two.out, allowed, "row {row} is not linear in the values", live(t))


@declare("out(V + c) = out(V) + c", values="normal")
def shifted_values_shift_the_output(t: Trial) -> None:
    """Adding a constant to a feature of all values adds it to that feature of the output."""
    v = coarse(t.inputs.v)
    shift = coarse(2 * t.noise("shift", (t.inputs.v.shape[3],)))
    plain, shifted = t.run(t.inputs.but(v=v)), t.run(t.inputs.but(v=v + shift))
    allowed = plain.bound + shifted.bound + 2.0**-51 * (size(plain.out) + np.abs(shift))
    t.close(shifted.out, plain.out + shift, allowed, "row {row} did not shift with its values", live(t))


@declare("out(V·diag(±1)) = out(V)·diag(±1)", exact=True, features=FEATURES)
def flipped_value_signs_flip_the_output(t: Trial) -> None:
    """Changing the sign of a feature of all values changes the sign of that feature of the output, and not a bit else."""
    sign = np.where(t.noise("sign", (t.inputs.v.shape[3],)) < 0, -1.0, 1.0)
    plain, flipped = t.run(), t.run(t.inputs.but(v=t.inputs.v * sign))
    t.same_bits(flipped.out, plain.out * sign, "column {column} is not odd in its values", live(t))


@declare("out(V·P) = out(V)·P")
def permuted_value_columns_permute_the_output(t: Trial) -> None:
    """Permuting the features of the values permutes the features of the output: no feature reads another."""
    order = t.permutation("columns", t.inputs.v.shape[3])
    plain, permuted = t.run(), t.run(t.inputs.but(v=t.inputs.v[..., order]))
    t.close(
        permuted.out,
        plain.out[..., order],
        permuted.bound + plain.bound[..., order],
        "column {column} depends on the order of the value's features",
    )
