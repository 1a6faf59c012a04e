"""A case of a multi-head layer: that of the attention inside it, and its projections."""

from __future__ import annotations

from dataclasses import dataclass

from ..attention import case as of_attention
from ..attention.cases import DIRECTIVES
from ..engine.cases.field import field
from ..engine.core.contract import Topic


@dataclass(frozen=True, repr=False)
class Case(of_attention.Case):
    """One call: query (batch, queries, heads·dim), key and value (batch, keys, heads·dim)."""

    with_bias: bool = field(
        True,
        drawn=(False, True),
        varied=(True, False),
        why="the projections have biases, or none: a bias forgotten, or added twice",
    )


MULTIHEAD = Topic("multihead", "layers", Case, tuple(Case.fields()), DIRECTIVES)
