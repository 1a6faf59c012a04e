"""Symmetry: what may be renamed, reordered or rotated without changing the answer.

Keys form a set; queries, batch elements and heads do not see one another; only dot products of queries and keys count.
"""

import numpy as np

from ..engine.core.supports import FEATURES
from .common import coarse
from .contract import declare
from .tables import SHORT
from .trial import Trial

ACROSS_TILES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 17, 18, 31, 32, 33, 33)


@declare("out(K·P, V·P) = out(K, V)", is_causal=False, moves=True)
def permuted_keys_change_nothing(t: Trial) -> None:
    """Reordering the keys together with their values and their mask changes nothing."""
    order = t.permutation("keys", t.inputs.shape[3])
    plain, permuted = t.run(), t.run(t.inputs.take("S", order))
    t.close(permuted.out, plain.out, permuted.bound + plain.bound, "row {row} depends on the order of the keys")


@declare(
    "out(P·Q) = P·out(Q)",
    is_causal=False,
    queries=(1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 33, 65, 65, 129),
    alike=(("queries", "keys"),),
    moves=True,
)
def permuted_queries_permute_rows(t: Trial) -> None:
    """Reordering the queries reorders the rows of the output: no query sees another."""
    order = t.permutation("queries", t.inputs.shape[2])
    plain, permuted = t.run(), t.run(t.inputs.take("L", order))
    t.close(
        permuted.out, plain.out[:, :, order], permuted.bound + plain.bound[:, :, order], "row {row} depends on the order of the queries"
    )


@declare(
    "∂out_b/∂(q, k, v)_b' = 0 for b' ≠ b",
    exact=True,
    features=FEATURES,
    batch=(*(2, 3, 4) * 2, 12, 20, 33),
    zero_sizes=False,
    alike=(("batch", "queries"), ("queries", "keys")),
    values=("normal", "one_hot", "simple"),
)
def batch_elements_are_independent(t: Trial) -> None:
    """Changing the other batch elements does not change a single bit of one."""
    one = np.arange(t.inputs.shape[0])[:, None, None, None] == t.choice("batch", t.inputs.shape[0])
    plain, changed = t.run(), t.run(_replaced(t, ~one))
    t.same_bits(changed.out, plain.out, "batch element {batch} changed when the others changed", one)


@declare(
    "∂out_h/∂(q, k, v)_h' = 0 for h' ≠ h",
    exact=True,
    features=FEATURES,
    kv_heads=(*(2, 3, 4) * 2, 12, 24, 40),
    zero_sizes=False,
    alike=(("kv_heads", "queries"), ("queries", "keys")),
    values=("normal", "one_hot", "simple"),
)
def heads_are_independent(t: Trial) -> None:
    """Changing the other heads does not change a single bit of one."""
    heads, group = t.inputs.k.shape[1], t.inputs.group
    one = np.arange(heads)[:, None, None] == t.choice("head", heads)
    plain, changed = t.run(), t.run(_replaced(t, ~one))
    mine = np.repeat(one, group, axis=0) & t.independent_heads(plain, changed)
    t.same_bits(changed.out, plain.out, "head {head} changed when the others changed", mine)


def _replaced(t: Trial, where: np.ndarray):  # type: ignore[no-untyped-def]
    """The inputs with other numbers wherever ``where`` (over batch and key/value heads) is True."""
    of_queries = np.repeat(where, t.inputs.group, axis=-3) if where.shape[-3] > 1 else where
    return t.inputs.but(
        q=np.where(of_queries, t.noise("other q", t.inputs.q.shape), t.inputs.q),
        k=np.where(where, 2 * t.noise("other k", t.inputs.k.shape), t.inputs.k),
        v=np.where(where, 8 * t.noise("other v", t.inputs.v.shape), t.inputs.v),
    )


@declare(
    "out(P over batch) = P over batch of out",
    features=FEATURES,
    batch=(2, 3, 4, 5),
    is_causal=(False, False, True),
    queries=(*(1,) * 5, 2, 3, 4, 5, 8, 17, 33),
)
def permuted_batch_permutes_the_output(t: Trial) -> None:
    """Reordering the batch reorders the output."""
    order = t.permutation("batch", t.inputs.shape[0])
    plain, permuted = t.run(), t.run(t.inputs.take("B", order))
    t.close(permuted.out, plain.out[order], permuted.bound + plain.bound[order], "batch element {batch} depends on its place in the batch")


@declare("out(P over heads) = P over heads of out", kv_heads=(2, 3, 4, 5))
def permuted_heads_permute_the_output(t: Trial) -> None:
    """Reordering the heads (key/value heads together with their group of query heads) reorders the output."""
    order = t.permutation("heads", t.inputs.k.shape[1])
    of_queries = (order[:, None] * t.inputs.group + np.arange(t.inputs.group)).reshape(-1)
    plain, permuted = t.run(), t.run(t.inputs.take("H", order))
    t.close(
        permuted.out,
        plain.out[:, of_queries],
        permuted.bound + plain.bound[:, of_queries],
        "head {head} depends on its place among the heads",
    )


@declare("q_d, k_d → −q_d, −k_d", exact=True)
def flipped_feature_signs_change_nothing(t: Trial) -> None:
    """Changing the sign of a feature of both queries and keys does not change a single bit."""
    sign = np.where(t.noise("sign", (t.inputs.q.shape[3],)) < 0, -1.0, 1.0)
    plain, flipped = t.run(), t.run(t.inputs.but(q=t.inputs.q * sign, k=t.inputs.k * sign))
    t.same_bits(flipped.out, plain.out, "row {row} changed when features of q and k changed sign together")


@declare("Q·2^a, K·2^−a", exact=True, values="normal", magnitude=0)
def powers_of_two_move_between_query_and_key(t: Trial) -> None:
    """A power of two moved from the keys to the queries does not change a single bit."""
    factor = 2.0 ** (1 + t.choice("power", 3))
    q, k = coarse(t.inputs.q), coarse(t.inputs.k)
    plain, moved = t.run(t.inputs.but(q=q, k=k)), t.run(t.inputs.but(q=q * factor, k=k / factor))
    t.same_bits(moved.out, plain.out, "row {row} changed when a power of two moved from keys to queries")


@declare("Q·R, K·R with R·Rᵀ = 1", values="normal", magnitude=(0, 1, -1), dim=(2, 3, 4, 5, 8, 16, 33, 64, 65, 80, 80, 128))
def orthogonal_basis_changes_nothing(t: Trial) -> None:
    """Queries and keys written in another orthogonal basis have the same dot products, and the same output."""
    pairs = t.inputs.q.shape[3] // 2 * 2

    def rotate(x: np.ndarray, factor: float) -> np.ndarray:  # (a, b) → (a + b, a − b), exact for coarse numbers
        a, b = x[..., 0:pairs:2], x[..., 1:pairs:2]
        return np.concatenate([(a + b) * factor, (a - b) * factor, x[..., pairs:]], axis=-1)

    q, k = coarse(t.inputs.q), coarse(t.inputs.k)
    plain, turned = t.run(t.inputs.but(q=q, k=k)), t.run(t.inputs.but(q=rotate(q, 1.0), k=rotate(k, 0.5)))
    t.close(turned.out, plain.out, turned.bound + plain.bound, "row {row} depends on the basis of queries and keys")


@declare(
    "q = 0, V = I  ⇒  n_i·out_ij = 1 if j is visible to i, else 0",
    keys=ACROSS_TILES,
    queries=SHORT,
    zero_sizes=False,
    mask_kind=("bool", "minus_infinity"),
    masked=3,
)
def uniform_weights_decode_the_mask(t: Trial) -> None:
    """With equal logits and V = I the output spells out which keys each row sees."""
    read = t.weights(t.inputs.but(q=np.zeros_like(t.inputs.q)))
    t.spells_out(read, t.visible())
