"""Positions: what tells the places of tokens apart.

Sinusoids and rotations turn every pair of features by the angle p w_i, w_i = base^(−2i/dim). They are held to the relations that
define them, not to a table alone.
"""

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.declare import declare
from ..engine.core.target import Raised
from . import exact as exactly
from .trial import PositionRun, PositionTrial

Wide = np.longdouble


def sine_and_cosine(t: PositionTrial, x: Array) -> tuple[Array, Array]:
    """The sines and the cosines of whole pairs, (positions, pairs), in the widest type."""
    sin, cos = exactly.split(x.astype(Wide), t.pairing)
    return sin[..., : t.case.dim // 2], cos[..., : t.case.dim // 2]


def turned(t: PositionTrial, x: Array, by: exactly.Turn) -> Array:
    """x (…, rotary_dim) rotated exactly."""
    x1, x2 = t.pairs(x)
    return exactly.join(x1 * by.cos - x2 * by.sin, x1 * by.sin + x2 * by.cos, t.rotary_dim, t.pairing)


# ---------------------------------------------------------------- sinusoids: PE(p, 2i) = sin(p w_i), PE(p, 2i+1) = cos(p w_i)


@declare("|PE(p, j) − exact| ≤ E", contract="sinusoidal", dtypes="all")
def sinusoid_is_inside_the_bound(t: PositionTrial) -> None:
    """Every element of the encoding is as near to the exact sine or cosine as the arithmetic of its angle promises."""
    run = t.sinusoid()
    t.inside(run, run.bound, "feature {column} of position {row} is off")


@declare("PE(p, 2i)² + PE(p, 2i+1)² = 1", contract="sinusoidal", dtypes="all", dim=(2, 4, 5, 6, 8, 16, 64))
def sine_and_cosine_are_of_one_angle(t: PositionTrial) -> None:
    """Every pair of features is a point on the unit circle, however far the position: both are of one angle."""
    out = t.sinusoid().out
    sin, cos = sine_and_cosine(t, out)
    angle = t.turn(t.case.offset + np.arange(len(out), dtype=np.float64)).angle[:, : sin.shape[1]]
    error = exactly.same_angle_error(angle, t.arithmetic) + t.arithmetic.u_out + t.arithmetic.eta_out
    t.close(
        (sin**2 + cos**2).astype(np.float64),
        np.ones(sin.shape),
        2 * (np.sqrt(2) * error + error**2),
        "pair {column} of position {row} does not lie on the unit circle",
    )


@declare("PE(p + k) = R(k) PE(p), R(k) from PE(k)", contract="sinusoidal", queries=(3, 4, 5, 8, 17), dim=(2, 4, 6, 7, 8), offset=0)
def encoding_of_a_sum_is_a_rotation(t: PositionTrial) -> None:
    """The encoding k positions on is a fixed rotation of the encoding, by the angle that row k itself holds."""
    run = t.sinusoid()
    k = 1 + t.choice("shift", len(run.out) - 1)
    (s, c), (es, ec) = sine_and_cosine(t, run.out), sine_and_cosine(t, run.bound)
    error = es[k] + ec[k] + es + ec + (es[k] + ec[k]) * (es + ec)  # of both products below, |s|, |c| ≤ 1
    for name, rotated, there, e in (("sine", s * c[k] + c * s[k], s, es), ("cosine", c * c[k] - s * s[k], c, ec)):
        t.close(
            rotated[:-k].astype(np.float64),
            there[k:],
            (error[:-k] + e[k:]) * (1 + 2.0**-40),
            f"the {name} of pair {{column}} at position {{row}} + {k} is not the rotated one",
        )


@declare(
    "w_0 = 1,  w_i² = w_(i−1) w_(i+1),  w_i = arg PE(1)_i", contract="sinusoidal", queries=(2, 3, 5), offset=0, dim=(6, 8, 7, 16, 32, 64)
)
def frequencies_are_geometric(t: PositionTrial) -> None:
    """From one pair to the next the frequency falls by one and the same factor, from 1 radian a position."""
    run = t.sinusoid()
    sin, cos = sine_and_cosine(t, run.out[1])
    e = np.pi / 2 * np.hypot(*sine_and_cosine(t, run.bound[1]))  # a chord e on the unit circle is an arc below π/2 e
    w = np.arctan2(sin, cos)
    t.close(w[:1].astype(np.float64), np.ones(1), e[:1] * (1 + 2.0**-40) + 2.0**-53, "the first frequency is not 1")
    slack = 2 * w[1:-1] * e[1:-1] + w[:-2] * e[2:] + w[2:] * e[:-2] + e[1:-1] ** 2 + e[:-2] * e[2:]
    t.close(
        (w[1:-1] ** 2).astype(np.float64),
        w[:-2] * w[2:],
        slack + 2.0**-52 * w[1:-1] ** 2,
        "the frequency of pair {column} + 1 is not the geometric mean of its neighbours",
    )


@declare("PE(0) = (0, 1, 0, 1, …)", contract="sinusoidal", exact=True, dtypes="all", offset=0)
def positions_start_at_zero(t: PositionTrial) -> None:
    """The first position is 0: its sines are 0, its cosines are 1, exactly."""
    run = t.sinusoid()
    t.same_bits(run.out[:1], run.exact.out[:1], "feature {column} of the first position is not that of position 0")


@declare("PE(n)[:m] = PE(m)", contract="sinusoidal", queries=(2, 3, 4, 5, 8, 17, 65))
def longer_encoding_begins_with_the_shorter(t: PositionTrial) -> None:
    """A position's encoding does not depend on how many positions there are."""
    long, short = t.sinusoid(), t.sinusoid(1 + t.choice("length", t.case.queries - 1))
    m = len(short.out)
    t.close(short.out, long.out[:m], short.bound + long.bound[:m], f"position {{row}} of {m} differs from that of {t.case.queries}")


@declare(
    "PE(n, offset=k) = PE(k + n)[k:]", contract="sinusoidal", needs=("offset",), queries=(1, 2, 3, 5, 17), offset=(1, 2, 7, 64, 255, 300)
)
def offset_shifts_the_encoding(t: PositionTrial) -> None:
    """Encoding from an offset on gives the rows that the whole encoding has there, as a cached decoder needs it."""
    k = t.case.offset
    part, whole = t.sinusoid(), t.sinusoid(k + t.case.queries, 0)
    t.close(part.out, whole.out[k:], part.bound + whole.bound[k:], f"row {{row}} is not position {k} + {{row}}")


# ---------------------------------------------------------------- rotations: y_i = R(p w_i) x_i


@declare("|R(p) x − exact| ≤ E", contract="rotary", dtypes="all")
def rotation_is_inside_the_bound(t: PositionTrial) -> None:
    """Every feature is as near to the exactly rotated one as the arithmetic of angle, table and products promises."""
    run = t.rotate()
    t.inside(run, run.bound, "feature {column} of row {row} is off")


@declare("|R(p) x|_i = |x|_i for every pair i", contract="rotary", dtypes="all")
def rotation_keeps_the_norm_of_every_pair(t: PositionTrial) -> None:
    """A rotation changes no length, by whatever angle: sine and cosine are of one angle, at any position."""
    run, a, angle = t.rotate(), t.arithmetic, t.turns(t.positions).angle
    (x1, x2), (y1, y2) = t.pairs(t.x.astype(Wide)), t.pairs(run.out.astype(Wide))
    e, one = exactly.same_angle_error(angle, a), np.ones(angle.shape)
    error = exactly.product_error(x1, x2, one, one, e, e, a)  # of either feature
    t.close(
        (y1**2 + y2**2).astype(np.float64),
        x1**2 + x2**2,
        2 * error * (np.abs(y1) + np.abs(y2)) + 2 * error**2 + 2.0**-52 * (x1**2 + x2**2),
        "pair {column} of row {row} changed its length",
    )


@declare("⟨R(i) q, R(j) k⟩ = ⟨R(i+a) q, R(j+a) k⟩", contract="rotary", queries=(1, 2, 3, 5, 17))
def scores_depend_on_the_distance_alone(t: PositionTrial) -> None:
    """Query and key moved on together by a positions have the same score."""
    q, k = t.x, t.tensor("key")
    there = t.permutation("places", t.case.queries)  # the key's position differs from the query's
    step = 1 + t.choice("step", 40)

    def score(move: int) -> tuple[Array, Array]:
        a, b = t.rotate(q, t.positions + move), t.rotate(k, t.positions[there] + move + 3)
        left, right = np.abs(a.out), np.abs(b.out)
        error = (left * b.bound + right * a.bound + a.bound * b.bound).sum(axis=-1)
        return (a.out.astype(Wide) * b.out).sum(axis=-1), error + 2.0**-52 * (left * right).sum(axis=-1)

    (here, e), (moved, f) = score(0), score(step)
    t.close(moved.astype(np.float64), here, e + f, f"the score of row {{column}} changed when both moved on by {step}")


@declare("R(k) R(p) x = R(p + k) x", contract="rotary")
def rotations_add_up(t: PositionTrial) -> None:
    """Rotated to position p and on by k is rotated to p + k: an offset is a shift."""
    k = float(1 + t.choice("step", 300))
    first, whole = t.rotate(), t.rotate(positions=t.positions + k)
    second = t.rotate(first.out, np.full(t.positions.shape, k))
    e1, e2 = t.pairs(first.bound)
    carried = exactly.join(e1 + e2, e1 + e2, t.rotary_dim, t.pairing)  # |R e| ≤ |e₁| + |e₂|
    allowed = second.bound + whole.bound
    allowed[..., : t.rotary_dim] += carried
    t.close(second.out, whole.out, allowed * (1 + 2.0**-40), f"row {{row}} rotated on by {k:.0f} is not at position p + {k:.0f}")


@declare("R(0) x = x", contract="rotary", exact=True, dtypes="all")
def position_zero_is_the_identity(t: PositionTrial) -> None:
    """At position 0 nothing is rotated, bit for bit: the cosine of 0 is 1."""
    run = t.rotate(positions=np.zeros(t.case.queries))
    t.same_bits(run.out, t.x, "feature {column} of row {row} changed at position 0")


@declare("x = e_j  ⇒  R(p) x lies in the pair of j", contract="rotary", exact=True, queries=(1, 2, 3, 5), layout="contiguous")
def pairs_are_as_declared(t: PositionTrial) -> None:
    """A single feature turns into its partner and into no other: neighbours where pairing is interleaved, halves where it is half."""
    feature = t.choice("feature", t.rotary_dim)
    one = np.zeros(t.x.shape)
    one[..., feature] = 1.0
    ours = np.zeros(t.x.shape[-1], dtype=bool)
    half = t.rotary_dim // 2
    ours[[feature, feature ^ 1 if t.pairing == "interleaved" else (feature + half) % t.rotary_dim]] = True
    t.same_bits(
        t.rotate(one).out,
        np.zeros(one.shape),
        f"feature {feature} went into feature {{column}}, which is not its partner (supports: pairing = {t.pairing!r})",
        ~ours,
    )


@declare(
    "R(p) x [rotary_dim:] = x [rotary_dim:]",
    contract="rotary",
    exact=True,
    needs=("rotary_dim",),
    dtypes="all",
    dim=(4, 6, 8, 12, 16, 32),
    rotary_dim=(2, 4, 6, 8),
)
def features_beyond_rotary_dim_are_untouched(t: PositionTrial) -> None:
    """Where only the first rotary_dim features turn, the others pass bit for bit."""
    beyond = np.arange(t.width) >= t.rotary_dim
    t.same_bits(t.rotate().out, t.x, f"feature {{column}} changed, though rotary_dim is {t.rotary_dim}", beyond)


@declare("∂(R x)_i / ∂(x, p)_j = 0 for j ≠ i", contract="rotary", exact=True, queries=(2, 3, 4, 5, 17))
def rows_turn_by_their_own_position(t: PositionTrial) -> None:
    """A row depends on its own features and its own position: other rows and other positions do not change a bit of it."""
    row = t.choice("row", t.case.queries)
    others = np.arange(t.case.queries) != row
    plain = t.rotate().out
    moved = t.rotate(np.where(others[:, None], -t.x, t.x), np.where(others, t.positions + 5, t.positions)).out
    t.same_bits(moved, plain, f"row {row} changed with other rows or their positions", ~others[:, None])


def unchanged(t: PositionTrial, given: Array, positions: Array) -> None:
    """The array and the positions of the last call are what they were."""
    for name, held in t.buffers.contents():
        t.same_bits(held, given, f"{name} was changed by the call")
    t.same_bits(t.target.framework.read(t.given), positions, "the positions were changed by the call")


@declare("x, positions after = before", contract="rotary", exact=True, dtypes="all")
def rotation_leaves_its_arguments(t: PositionTrial) -> None:
    """What is rotated is rotated in the answer, not in place."""
    t.rotate()
    unchanged(t, t.x, t.positions)


@declare("∂⟨dO, R(p) x⟩/∂x = R(−p) dO", contract="rotary", needs=("rotation_gradients",), dtypes="all")
def rotation_gradient_turns_back(t: PositionTrial) -> None:
    """The gradient is rotated by the same angles the other way round: the transpose of a rotation is its inverse."""
    grad = t.tensor("gradient")
    exact, allowed = exactly.rotation(grad, t.turns(-t.positions), t.pairing, t.arithmetic)
    t.answers.append((found := t.rotation_gradient(grad), allowed))
    t.inside(PositionRun(found, exact, allowed), allowed, "the gradient of feature {column} of row {row} is not the one turned back")


# ---------------------------------------------------------------- learned positions: out_i = table[p_i + offset]


@declare("out_i = table[p_i + offset]", contract="learned", exact=True, dtypes="all")
def looked_up_rows_are_those_of_the_table(t: PositionTrial) -> None:
    """Every row of the answer is the row of the table that stands at its position, bit for bit, however often it is asked for."""
    t.same_bits(t.look_up(), t.table[t.rows], "row {row} is not the row of the table at its position")


@declare("rows that are not looked up do not count", contract="learned", exact=True, keys=(2, 3, 5, 8))
def other_rows_of_the_table_do_not_matter(t: PositionTrial) -> None:
    """Other numbers, NaN among them, in rows that no position asks for do not change a bit."""
    others = np.isin(np.arange(len(t.table)), t.rows, invert=True)[:, None]
    changed = np.where(others, np.nan if t.choice("poison", 2) else 8 * t.table + 1, t.table)
    t.same_bits(t.look_up(changed), t.look_up(), "row {row} changed with a row of the table that is not its own")


@declare("p < 0 or p + offset ≥ rows  ⇒  an error", contract="learned", exact=True, queries=(1, 2, 3, 5))
def positions_out_of_range_raise(t: PositionTrial) -> None:
    """A position without a row raises: it is neither wrapped round to the other end of the table nor cut off at its last row."""
    outside = (-1 - t.case.offset, len(t.table) - t.case.offset, 2 * len(t.table))[t.choice("side", 3)]
    places = np.where(np.arange(t.case.queries) == t.choice("place", t.case.queries), outside, t.places)
    try:
        t.look_up(places=places)
    except Raised:
        return
    t.fail(f"position {outside} with offset {t.case.offset} of a table of {len(t.table)} rows is answered, not refused")


@declare("table, positions after = before", contract="learned", exact=True, dtypes="all")
def looking_up_leaves_its_arguments(t: PositionTrial) -> None:
    """Neither the table nor the positions are changed: an offset is added to a copy."""
    t.look_up()
    unchanged(t, t.table, t.places)


@declare(
    "dtable_r = Σ_{i : p_i + offset = r} dO_i",
    contract="learned",
    needs=("table_gradients",),
    dtypes="all",
    queries=(1, 2, 3, 5, 8, 17, 33),
    keys=(1, 2, 3, 5),
)
def table_gradient_sums_over_repeated_positions(t: PositionTrial) -> None:
    """A row of the table receives the sum of the gradients of all rows that asked for it; one that nobody asked for, none at all."""
    grad = t.tensor_of("gradient", (t.case.queries, t.case.dim))
    exact, size, count = np.zeros(t.table.shape), np.zeros(t.table.shape), np.zeros((len(t.table), 1))
    np.add.at(exact, t.rows, grad)
    np.add.at(size, t.rows, np.abs(grad))
    np.add.at(count, t.rows, 1.0)
    unit = max(t.arithmetic.u_out, 2.0**-53)  # any order of summation, stored after every addition
    allowed = size * np.expm1(np.maximum(count - 1, 0) * np.log1p(unit)) + 2.0**-53 * count * size * (count > 1)
    t.close(t.table_gradient(grad), exact, allowed, "row {row} of the table does not receive the sum over its positions")


# ---------------------------------------------------------------- all of them


@declare("shape, dtype and device as asked", contract="positions", exact=True, dtypes="all")
def positions_have_the_right_form(t: PositionTrial) -> None:
    """The answer has the shape, the type and the device that were asked for; twice the same call gives the same bits, and none changes an answer
    that was given."""
    first = t.answer_again()
    _shape, dtype, device = t.form
    asked = t.target.contract != "buckets" and (t.target.contract in ("rotary", "learned") or "dtype" in t.target.parameters)
    if (asked and dtype != t.case.dtype) or device != t.case.device:
        t.fail(f"returned {dtype} on {device}, expected {t.case.dtype} on {t.case.device}")
    t.same_bits(t.answer_again(), first, "the same call gave different bits")
    t.stays(t.own, t.another_answer)
