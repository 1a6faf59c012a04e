"""The contracts: what a callable of each is called with, and how its signature is recognised."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...block import call as block_target
from ...cache import call as cache_target
from ...pack import call as packed_target
from ...position import call as position_target
from .target import Target

Formal = Mapping[str, inspect.Parameter]


@dataclass(frozen=True)
class Kind:
    """Contracts that are neither an attention nor a layer around one, and how a callable is seen to be of one of them."""

    calls: Mapping[str, str]  # contract → its call, in words
    arguments: Mapping[str, int]  # contract → how many arguments come by position
    recognise: Callable[[Formal], str | None]
    options: Callable[[str, Formal], tuple[str, ...]]  # the optional parameters of the contract that a signature names
    given: Callable[[str, Formal], tuple[str, ...]]  # the parameters, beyond those by position, that a signature may require
    smoke: Callable[[Target, str, str], str]  # a small call: what is wrong with the form of its answer


KINDS = (
    Kind(position_target.POSITIONS, position_target.ARGUMENTS, position_target.recognise, position_target.taken,
         position_target.taken, position_target.smoke),
    Kind({"packed": packed_target.PACKED}, {"packed": 5}, packed_target.recognise, lambda _, formal: packed_target.taken(formal),
         lambda *_: packed_target.ALL_NAMES, packed_target.smoke),
    Kind(block_target.BLOCKS, block_target.ARRAYS, block_target.recognise, block_target.taken,
         lambda contract, _: ("num_heads", *block_target.PARAMETERS[contract]), block_target.smoke),
    Kind(cache_target.CACHED, {"cached": len(cache_target.NAMES)}, cache_target.recognise, lambda _, formal: cache_target.taken(formal),
         lambda _, formal: cache_target.taken(formal), cache_target.smoke),
)  # fmt: skip
KIND_OF: dict[str, Kind] = {contract: kind for kind in KINDS for contract in kind.calls}
CONTRACTS: dict[str, str] = {
    "attention": "attention(q, k, v, *, attn_mask=None, is_causal=False, scale=None, enable_gqa=False)",
    "multihead": "multihead(query, key, value, weights, *, num_heads, attn_mask=None, key_padding_mask=None, "
    "is_causal=False, need_weights=True)",
    **{contract: call for kind in KINDS for contract, call in kind.calls.items()},
}
ARGUMENTS: dict[str, int] = {"attention": 3, "multihead": 4, **{c: n for kind in KINDS for c, n in kind.arguments.items()}}


def recognise(formal: Formal) -> str:
    """The contract that a signature has; an attention where it is no other."""
    apart = next(filter(None, (kind.recognise(formal) for kind in KINDS)), None)
    return apart or ("multihead" if "weights" in formal and "num_heads" in formal else "attention")
