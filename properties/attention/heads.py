"""Heads: several attentions side by side, each on its own features; their outputs are concatenated.

query head h uses key/value head ⌊h / G⌋, G = H / Hkv (grouped-query attention, Ainslie et al. 2023)
"""

import numpy as np

from .contract import declare
from .trial import Trial


@declare("out(K, V) = out(repeat(K, G), repeat(V, G))", needs=("enable_gqa",), group=(2, 3, 4), kv_heads=(2, 3, 1, 4))
def grouped_heads_equal_repeated_heads(t: Trial) -> None:
    """Query heads that share a key/value head give the same as if each had its own copy."""
    group = t.inputs.group
    repeated = t.inputs.but(k=np.repeat(t.inputs.k, group, axis=1), v=np.repeat(t.inputs.v, group, axis=1))
    shared, own = t.run(), t.run(repeated)
    t.close(shared.out, own.out, shared.bound + own.bound, "head {head} does not use the key/value head of its group")


@declare("out(h_1 … h_H) = concat(out(h_1), …, out(h_H))", kv_heads=(2, 3, 4, 1), zero_sizes=False, fewer_heads=True)
def head_concatenation_preserves_shape(t: Trial) -> None:
    """Every head computed alone, and all of them concatenated, give the shape and the numbers of all heads at once."""
    batch, heads, queries, width = t.inputs.shape[0], t.inputs.k.shape[1], t.inputs.shape[2], t.inputs.v.shape[3]
    whole = t.run()
    alone = [t.run(t.inputs.take("H", np.array([h]))) for h in range(heads)]
    joined = np.concatenate([run.out for run in alone], axis=1)
    allowed = whole.bound + np.concatenate([run.bound for run in alone], axis=1)
    features = heads * t.inputs.group * width
    joined, out, allowed = (x.transpose(0, 2, 1, 3).reshape(batch, queries, features) for x in (joined, whole.out, allowed))
    t.close(joined, out, allowed, "feature {column} of row {row} differs when its head is computed alone")
