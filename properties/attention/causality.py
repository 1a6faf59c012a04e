"""Causality: row i depends on the keys up to its own position, and on nothing after it.

key j is visible to query i  ⇔  j ≤ i            (top-left)
                             ⇔  j ≤ i + S − L    (bottom-right)
"""

import numpy as np

from ..engine.core.target import NotTaken
from .common import live, reads_visible
from .contract import declare
from .masks import agree
from .tables import ONE_OR_TWO, SHORT, SMALL_DIMS
from .trial import Trial

LONG = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 33, 65, 129, 130, 130)  # of queries and keys at once


def offset(t: Trial) -> int:
    """How many keys the first query sees beyond its own position."""
    return 0 if t.supports.causal == "top-left" else t.inputs.shape[3] - t.inputs.shape[2]


@declare(
    "∂out_i/∂(q, k, v)_j = 0 for j > i",
    needs=("is_causal",),
    exact=True,
    is_causal=True,
    features=("window_size", "softcap", "alibi_slopes", "sinks"),
    values=("normal", "one_hot", "simple", "rising"),
    zero_sizes=False,
    models=2,
)
def future_tokens_are_ignored(t: Trial) -> None:
    """Changing tokens after position i does not change a single bit of the rows up to i."""
    queries, keys = t.inputs.shape[2:]
    last = max(min(queries, keys - offset(t)) - 2, 0)  # the last row with a later token, which no earlier row may see either
    row = last if t.choice("late", 2) else t.choice("row", queries)
    later_key = (np.arange(keys) > row + offset(t))[:, None]
    later_query = (np.arange(queries) > row)[:, None]
    plain = t.run()
    changed = t.run(
        t.inputs.but(
            q=np.where(later_query, t.noise("future q", t.inputs.q.shape), t.inputs.q),
            k=np.where(later_key, t.noise("future k", t.inputs.k.shape), t.inputs.k),
            v=np.where(later_key, 8 * t.noise("future v", t.inputs.v.shape), t.inputs.v),
        )
    )
    t.same_bits(changed.out, plain.out, f"row {{row}} changed when tokens after position {row} changed", ~later_query & reads_visible(t))


@declare("out(x_0 … x_t)_i = out(x_0 … x_L)_i for i ≤ t", needs=("is_causal",), is_causal=True, mask="none", zero_sizes=False)
def prefix_of_output_is_output_of_prefix(t: Trial) -> None:
    """The first rows of a causal output are the output of the first tokens alone."""
    queries, keys = t.inputs.shape[2:]
    step = t.supports.length_multiple
    least = 1 if t.supports.zero_sizes else max(1, 1 - offset(t))  # so that a key is left
    least = -(-least // step) * step
    if least > queries:
        raise NotTaken(f"fewer than {least} queries, of which no row can be left out")
    cut = least + step * t.choice("cut", (queries - least) // step + 1)
    prefix_keys = int(np.clip(cut + offset(t), 0, keys))
    prefix = t.inputs.but(q=t.inputs.q[:, :, :cut], k=t.inputs.k[:, :, :prefix_keys], v=t.inputs.v[:, :, :prefix_keys])
    whole, part = t.run(), t.run(prefix)
    t.close(
        part.out,
        whole.out[:, :, :cut],
        part.bound + whole.bound[:, :, :cut],
        f"row {{row}} of the first {cut} differs when the later tokens are absent",
        live(t)[:, :, :cut] | (t.empty_rows not in ("mean", "all")),
    )  # of other values it is another mean


@declare(
    "w_ij > 0  ⇔  j ≤ i, decoded from uniform weights",
    needs=("is_causal",),
    is_causal=True,
    mask="none",
    queries=(1, 1, *SHORT),
    keys=SHORT,
    zero_sizes=False,
)
def causal_frontier_is_exact(t: Trial) -> None:
    """Row i sees exactly the keys up to the frontier of the declared alignment, no more and no fewer."""
    read = t.weights(t.inputs.but(q=np.zeros_like(t.inputs.q)))
    t.spells_out(read, t.visible())


@declare(
    "is_causal = the mask j ≤ i",
    needs=("is_causal", "attn_mask"),
    is_causal=True,
    mask="none",
    writes=("bool",),
    along="LS",
    zero_sizes=False,
    queries=LONG,
    keys=LONG,
    alike=(("queries", "keys"),),
    batch=ONE_OR_TWO,
    kv_heads=ONE_OR_TWO,
    dim=SMALL_DIMS,
)
def causal_equals_triangular_mask(t: Trial) -> None:
    """is_causal is the same as the explicit triangular mask."""
    explicit = t.inputs.but(is_causal=False, mask=t.visible()[0, 0])
    agree(t, t.run(), t.run(explicit), "row {row} differs between is_causal and the triangular mask")
