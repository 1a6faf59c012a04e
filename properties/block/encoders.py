"""Encoder layers: every token looks at all tokens, and knows no order."""

import numpy as np

from ..engine.core.declare import declare
from .blocks import UNMASKED
from .trial import BlockTrial


@declare(
    "layer(P·x) = P·layer(x)",
    contract="encoder_layer",
    **UNMASKED,
    is_causal=False,
    queries=(2, 3, 4, 5, 8, 17),
    dim=(3, 4, 5, 8),
    dtype=("float64", "float32"),
)
def encoder_commutes_with_permutation(t: BlockTrial) -> None:
    """Without positions an encoder layer does not know the order of its tokens."""
    order = t.permutation("tokens", t.case.queries)
    plain, permuted = t.run_block(), t.run_block(t.block.but(x=t.block.x[:, order]))
    t.close(permuted.out, plain.out[:, order], permuted.bound + plain.bound[:, order], "the token now in row {row} depends on its place")


@declare(
    "∂out_i/∂x_j ≠ 0  ⇔  j visible from i",
    contract="encoder_layer",
    exact=True,
    padding=False,
    memory_padding=False,
    dtype=("float64", "float32"),
    values="normal",
    magnitude=0,
    mask=("none", "none", "none", "random", "triangle", "one_hole"),
    mask_kind=("bool", "minus_infinity"),
    queries=(2, 3, 4, 5),
    kv_heads=(1, 2, 3),
    dim=(3, 4, 5),
)
def tokens_reach_exactly_who_sees_them(t: BlockTrial) -> None:
    """A changed token changes its own row and the rows that see it in some head, and not a bit of any other."""
    j = t.choice("token", t.case.queries)
    sees = t.visible_tokens(t.block)[..., j].any(1) | (np.arange(t.case.queries) == j)  # (B, L)
    at = (np.arange(t.case.queries) == j)[:, None]
    plain, changed = t.run_block(), t.run_block(t.block.but(x=np.where(at, -t.block.x, t.block.x)))
    t.same_bits(changed.out, plain.out, f"row {{row}} changed with token {j}, which it does not see", ~sees[..., None])
    deaf = sees & (changed.out == plain.out).all(-1) & plain.posed[..., 0]
    if deaf.any():
        t.fail(f"row {int(np.argwhere(deaf)[0, 1])} sees token {j} and did not change with it")
