"""Packed sequences: many of different length in one call, one after the other, without padding.

    out_i = Σ_j softmax_j(scale · q_i·k_j) v_j,   j in the sequence of i:  cu_k[n] ≤ j < cu_k[n + 1]  for  cu_q[n] ≤ i < cu_q[n + 1]

Each sequence is an attention of its own, with its own causal frontier. (Dao et al., ``flash_attn_varlen_func``, 2022.)
"""

import numpy as np

from ..engine.core.declare import declare
from .call import boundaries
from .packing import FILLED
from .trial import PackedTrial

SEVERAL = (2, 2, 3, 3, 4, 5)  # sequences


@declare("|out_i − attention over the sequence of i| ≤ E", contract="packed", dtypes="all")
def packed_output_is_inside_the_bound(t: PackedTrial) -> None:
    """Every row is as near to the attention over its own sequence as the arithmetic promises."""
    run = t.run_pack()
    t.inside(run, run.bound, "row {row} of the pack is off in head {head}")


@declare("out of sequence n depends on sequence n alone", contract="packed", exact=True, batch=SEVERAL, layout="contiguous")
def sequences_do_not_see_each_other(t: PackedTrial) -> None:
    """Other numbers in all other sequences do not change a bit of the rows of this one."""
    x, here = t.pack, np.arange(t.case.batch) == t.choice("sequence", t.case.batch)
    rows, keys = x.rows(here)[:, None, None], x.keys(here)[:, None, None]
    other = x.but(q=np.where(rows, x.q, -x.q), k=np.where(keys, x.k, -2 * x.k), v=np.where(keys, x.v, x.v + 64))
    t.same_bits(t.run_pack(other).out, t.run_pack().out, "row {row} changed with another sequence of the pack", rows[:, 0])


@declare("out of the pack [n] = out of sequence n alone", contract="packed", batch=SEVERAL)
def a_sequence_alone_gives_its_rows(t: PackedTrial) -> None:
    """A sequence gives the same by itself as in a pack."""
    n = t.choice("sequence", t.case.batch)
    whole, alone = t.run_pack(), t.run_pack(t.pack.take(np.array([n])))
    rows = slice(t.pack.cu_q[n], t.pack.cu_q[n + 1])
    t.close(alone.out, whole.out[:, rows], alone.bound + whole.bound[:, rows], f"row {{row}} of sequence {n} is another one in the pack")


@declare("pack(σ) = σ(pack)", contract="packed", batch=SEVERAL)
def order_of_the_sequences_does_not_matter(t: PackedTrial) -> None:
    """The order in which sequences are packed does not matter."""
    order, x = t.permutation("order", t.case.batch), t.pack
    there = np.concatenate([np.arange(x.cu_q[n], x.cu_q[n + 1]) for n in order]).astype(int)
    plain, moved = t.run_pack(), t.run_pack(x.take(order))
    t.close(moved.out, plain.out[:, there], moved.bound + plain.bound[:, there], "row {row} depends on the order of the sequences")


@declare("pack with an empty sequence between = pack", contract="packed", packing=FILLED, needs=("zero_sizes",))
def empty_sequences_change_nothing(t: PackedTrial) -> None:
    """A sequence without queries and keys, anywhere in the pack, changes nothing."""
    x, at = t.pack, t.choice("place", t.case.batch + 1)
    cu_q, cu_k = (boundaries(np.insert(n, at, 0)) for n in x.lengths)
    plain, more = t.run_pack(), t.run_pack(x.but(cu_q=cu_q, cu_k=cu_k))
    t.close(more.out, plain.out, more.bound + plain.bound, f"row {{row}} changed with an empty sequence at place {at}")


@declare("v = 1 in sequence n, 0 elsewhere  ⇒  out = 1 in its rows, 0 elsewhere", contract="packed", batch=SEVERAL, packing=FILLED)
def values_stay_in_their_sequence(t: PackedTrial) -> None:
    """The values of one sequence reach its rows with weights that sum to one, and no other row at all."""
    x, here = t.pack, np.arange(t.case.batch) == t.choice("sequence", t.case.batch)
    own = t.made_of_values(x)
    run = t.run_pack(x.but(v=np.broadcast_to(x.keys(here)[:, None, None], x.v.shape).astype(np.float64)))
    t.same_bits(run.out, np.zeros(run.out.shape), "row {row} holds a value of another sequence", (~x.rows(here) & own)[:, None])
    t.inside(run, run.bound, "the weights of row {row} over its own sequence do not sum to one", x.rows(here)[:, None])


@declare("one key  ⇒  out = its value", contract="packed", packing="ones", dtypes="all")
def sequences_of_one_token_return_their_value(t: PackedTrial) -> None:
    """Where every sequence is a single token, each returns its own value."""
    x, run = t.pack, t.run_pack()
    value = np.repeat(x.v, t.case.group, axis=1).swapaxes(0, 1)
    t.close(run.out, value, run.bound, "row {row} is not the value of its only key")


@declare(
    "is_causal: out_i unchanged by keys after its frontier, in its own sequence",
    contract="packed",
    exact=True,
    needs=("is_causal",),
    is_causal=True,
    packing=("self", "mixed", "equal", "long_last"),
    layout="contiguous",
    keys=(2, 3, 4, 5, 7, 8, 16, 17, 33, 65),
)
def packed_future_tokens_are_ignored(t: PackedTrial) -> None:
    """The last token of every sequence changes no row before it, whatever came before in the pack."""
    x = t.pack
    queries, keys = x.lengths
    last = np.zeros(len(x.k), dtype=bool)
    last[x.cu_k[1:][keys > 0] - 1] = True
    changed = x.but(k=np.where(last[:, None, None], 4 * x.k + 1, x.k), v=np.where(last[:, None, None], x.v + 64, x.v))
    sees = [t.visible(x)[n, :rows, columns - 1] for n, (rows, columns) in enumerate(zip(queries, keys, strict=True))]
    t.same_bits(
        t.run_pack(changed).out,
        t.run_pack().out,
        "row {row} changed with the last token of its sequence, which it must not see",
        ~np.concatenate(sees)[:, None],
    )


@declare("max_seqlen + 7 = max_seqlen", contract="packed", needs=("max_seqlen_q", "max_seqlen_k"))
def larger_max_seqlen_changes_nothing(t: PackedTrial) -> None:
    """max_seqlen is a promise about the lengths, not a length: a larger one changes nothing."""
    x = t.pack
    plain = t.run_pack()
    for larger in (x.but(max_q=x.max_q + 7), x.but(max_k=x.max_k + 7)):
        more = t.run_pack(larger)
        t.close(more.out, plain.out, more.bound + plain.bound, "row {row} changed under a larger max_seqlen")


@declare("shape, dtype, device; arguments and answers after = before; twice the same bits", contract="packed", exact=True, dtypes="all")
def packed_output_has_the_right_form(t: PackedTrial) -> None:
    """The output has the type and device of the queries, the arguments are left alone, as are earlier answers; the same call gives the same bits."""
    first = t.run_pack()
    _, dtype, device = t.form
    if (dtype, device) != (t.case.dtype, t.case.device):
        t.fail(f"returned {dtype} on {device}, expected {t.case.dtype} on {t.case.device}")
    for name, held in t.buffers.contents():
        if not np.array_equal(held, getattr(t.pack, name)):
            t.fail(f"{name} was changed by the call")
    t.same_bits(t.run_pack().out, first.out, "the same call gave different bits at row {row}")
    t.stays(t.own, lambda: t.run_pack(t.pack.but(v=-t.pack.v)))


@declare("|dQ − exact|, |dK − exact|, |dV − exact| ≤ E, sequence by sequence", contract="packed", needs=("packed_gradients",), dtypes="all")
def packed_gradients_are_inside_the_bound(t: PackedTrial) -> None:
    """Backward, too, every sequence is an attention of its own."""
    for name, run in t.send_back(t.round(t.noise("gradient", (*t.pack.q.shape[:2], t.case.width)))).items():
        t.inside(run, run.bound, f"the gradient of {name} is off at row {{row}} of the pack")


@declare(
    "dO = 0 outside sequence n  ⇒  dQ = dK = dV = 0 outside it", contract="packed", exact=True, needs=("packed_gradients",), batch=SEVERAL
)
def packed_gradients_stay_in_their_sequence(t: PackedTrial) -> None:
    """A loss on one sequence sends nothing back to any other."""
    x, here = t.pack, np.arange(t.case.batch) == t.choice("sequence", t.case.batch)
    noise = t.round(t.noise("gradient", (*x.q.shape[:2], t.case.width)))
    runs = t.send_back(np.where(x.rows(here)[:, None, None], noise, 0.0))
    own = np.array([t.made_of_values(x)[x.cu_q[n] : x.cu_q[n + 1]].all() for n in range(t.case.batch)])  # NaN · 0 is NaN
    elsewhere = ~here & own
    for name, others in (("q", x.rows(elsewhere)), ("k", x.keys(elsewhere)), ("v", x.keys(elsewhere))):
        t.same_bits(
            runs[name].out,
            np.zeros(runs[name].out.shape),
            f"row {{row}} of {name} receives a gradient from another sequence",
            others[:, None],
        )
