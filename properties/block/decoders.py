"""Decoder layers: tokens look at one another, then at the memory, which has a length and a padding of its own."""

from typing import Any

import numpy as np

from ..engine.core.declare import declare
from .blocks import SEVERAL, UNMASKED
from .trial import BlockTrial

ALIVE: dict[str, Any] = {"dtype": ("float64", "float32"), "values": "normal", "magnitude": 0, "kv_heads": (1, 2, 3), "dim": (3, 4, 5)}


@declare(
    "∂out_i/∂m_j ≠ 0 for all i, j",
    contract="decoder_layer",
    exact=True,
    mask="none",
    memory_mask="none",
    memory_padding=False,
    padding=(False, True),
    queries=(2, 3, 4),
    keys=(2, 3, 4, 5),
    **ALIVE,
)
def every_memory_token_matters(t: BlockTrial) -> None:
    """All tokens see all of the memory: neither causality nor the padding of the tokens hides any of it."""
    assert t.block.memory is not None
    plain = t.run_block()
    for j in (0, t.choice("token", t.case.keys), t.case.keys - 1):
        at = (np.arange(t.case.keys) == j)[:, None]
        changed = t.run_block(t.block.but(memory=np.where(at, -t.block.memory, t.block.memory)))
        deaf = (changed.out == plain.out).all(-1) & plain.posed[..., 0]
        if deaf.any():
            t.fail(f"row {int(np.argwhere(deaf)[0, 1])} does not depend on token {j} of the memory")


@declare(
    "∂out_i/∂m_j ≠ 0  ⇔  memory_mask_ij",
    contract="decoder_layer",
    needs=("memory_mask",),
    exact=True,
    mask="none",
    padding=False,
    memory_mask=("random", "triangle", "one_hole", "one_key"),
    mask_kind=("bool", "minus_infinity"),
    memory_padding=False,
    mask_axes=("LS", "LS", "BLS", "HLS", "BHLS", "S", "L"),
    queries=(2, 3, 4, 5),
    keys=(2, 3, 4, 5),
    **ALIVE,
)
def memory_frontier_is_exact(t: BlockTrial) -> None:
    """A changed token of the memory changes the rows that the mask lets see it, and not a bit of any other."""
    assert t.block.memory is not None
    j = t.choice("token", t.case.keys)
    sees = np.any(t.memory_visible(t.block)[..., j], 1)[..., None]  # (B, L, 1)
    at = (np.arange(t.case.keys) == j)[:, None]
    plain, changed = t.run_block(), t.run_block(t.block.but(memory=np.where(at, -t.block.memory, t.block.memory)))
    blind = ~sees & plain.posed
    t.same_bits(changed.out, plain.out, f"row {{row}} changed with token {j} of the memory, which it does not see", blind)
    deaf = sees & (changed.out == plain.out).all(-1, keepdims=True) & plain.posed
    if deaf.any():
        t.fail(f"row {int(np.argwhere(deaf)[0, 1])} sees token {j} of the memory and did not change with it")


@declare("memory·P, memory_mask·P: the same", contract="decoder_layer", mask="none", padding=False, keys=(2, 3, 4, 5, 8, 17))
def order_of_the_memory_does_not_matter(t: BlockTrial) -> None:
    """The memory is a set: permuting its tokens together with their mask and their padding changes nothing."""
    inputs, order = t.block, t.permutation("memory", t.case.keys)
    assert inputs.memory is not None
    mask, hidden = inputs.memory_mask, inputs.memory_padding
    moved = inputs.but(
        memory=inputs.memory[:, order],
        memory_padding=None if hidden is None else hidden[:, order],
        memory_mask=mask if mask is None or not mask.ndim or mask.shape[-1] == 1 else mask[..., order],
    )
    t.agree(t.run_block(moved), t.run_block(), "row {row} depends on the order of the memory")


@declare(
    "memory_key_padding_mask = memory tokens removed",
    contract="decoder_layer",
    needs=("memory_key_padding_mask",),
    memory_padding=True,
    mask="none",
    memory_mask="none",
    padding=False,
    keys=(2, 3, 4, 5, 8, 17),
)
def padded_memory_is_as_good_as_removed(t: BlockTrial) -> None:
    """What padded memory holds changes no bit, and without it the output is the same; each sequence has its own padding."""
    inputs, run = t.block, t.run_block()
    assert inputs.memory is not None and inputs.memory_padding is not None
    garbage = t.run_block(inputs.but(memory=np.where(inputs.memory_padding[..., None], 8 - inputs.memory, inputs.memory)))
    t.same_bits(garbage.out, run.out, "row {row} changed with the content of padded memory", run.posed)
    b = t.choice("sequence", t.case.batch)
    remaining, one = ~inputs.memory_padding[b], slice(b, b + 1)
    alone = t.run_block(inputs.but(x=inputs.x[one], memory=inputs.memory[one, remaining], memory_padding=None))
    t.close(run.out[one], alone.out, run.bound[one] + alone.bound, f"sequence {b} differs without its padded memory", run.posed[one])


@declare(
    "memory_mask ∧ memory_key_padding_mask",
    contract="decoder_layer",
    needs=("memory_mask", "memory_key_padding_mask"),
    memory_padding=True,
    memory_mask=("random", "band", "one_hole", "documents"),
    mask="none",
    padding=False,
    queries=(2, 3, 4),
    mask_axes=("LS", "HLS", "BLS", "BHLS", "S", "BS"),
    keys=(2, 3, 4, 8),
)
def memory_mask_and_padding_compose(t: BlockTrial) -> None:
    """Mask and padding of the memory together hide what either hides."""
    t.inside_block(t.run_block(), "row {row} does not respect both the mask and the padding of the memory")


@declare("W_o(cross) = 0  ⇒  ∂out/∂memory = 0", contract="decoder_layer", exact=True, **UNMASKED, dtypes="all")
def memory_enters_through_attention_alone(t: BlockTrial) -> None:
    """With the cross-attention cut off the memory changes no bit: it enters neither the residual nor the self-attention."""
    w = t.block.weights
    cut = t.block.with_weights(cross_w_o=np.zeros_like(w["cross_w_o"]))
    assert cut.memory is not None
    plain, changed = t.run_block(cut), t.run_block(cut.but(memory=3 - cut.memory))
    t.same_bits(changed.out, plain.out, "row {row} knows the memory without attending to it", t.bounded(plain, changed))


@declare("equal memory tokens  ⇒  out depends on no W_q, W_k of the cross-attention", contract="decoder_layer", **UNMASKED, **SEVERAL)
def equal_memory_needs_no_query(t: BlockTrial) -> None:
    """Where all tokens of the memory are the same, every average of their values is that value: queries and keys do not matter."""
    assert t.block.memory is not None
    same = t.block.but(memory=np.broadcast_to(t.block.memory[:, :1], t.block.memory.shape))
    w = same.weights
    other = same.with_weights(cross_w_q=-w["cross_w_q"], cross_w_k=2 * w["cross_w_k"])
    t.agree(t.run_block(other), t.run_block(same), "row {row} depends on how it looks at a memory of equal tokens")
