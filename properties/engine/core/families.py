"""Families of contracts beside attention: how each of them is drawn, tried and told of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...attention.trial import Trial
from ...block import cases as block_domain
from ...block.call import BLOCKS
from ...block.trial import BlockTrial
from ...cache import cases as cache_domain
from ...cache.call import CACHED
from ...cache.trial import CacheTrial
from ...pack import trial as packed_trial
from ...position import cases as position_domain
from ...position.call import POSITIONS
from ...position.trial import PositionTrial
from ..cases.case import Case
from ..cases.draws import Strategy
from .declare import Property
from .target import Target

Dtypes = tuple[str, ...] | None


def never(target: Target, prop: Property, dtypes: Dtypes) -> str:
    """No property is refused."""
    return ""


@dataclass(frozen=True)
class Family:
    """What the engine does with the contracts of one family."""

    name: str  # the contract of the properties that all contracts of the family have
    subject: str  # what they are, in the words of a report
    trial: type[Trial]
    cases: Callable[[Target, Property, str, Dtypes], Strategy]
    fields: Callable[[Target], tuple[str, ...]]  # the fields of a case that decide a call
    features: Callable[[Target, Case], Iterable[str]]  # what a case exercises, in the words of a report
    refused: Callable[[Target, Property, Dtypes], str] = never  # why a property cannot be drawn for a target


_POSITIONS = Family("positions", "positions", PositionTrial, position_domain.position_cases, position_domain.position_fields,
                    position_domain.position_features)
_BLOCKS = Family("block", "encoder and decoder layers", BlockTrial, block_domain.block_cases, block_domain.block_fields,
                 block_domain.block_features, block_domain.refused)
_CACHES = Family("cached", "caches", CacheTrial, cache_domain.cache_cases, cache_domain.cache_fields, cache_domain.cache_features,
                 cache_domain.refused)
_PACKS = Family("packed", "packed sequences", packed_trial.PackedTrial, packed_trial.packed_cases, packed_trial.packed_fields,
                packed_trial.packed_features)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(POSITIONS, _POSITIONS), **dict.fromkeys(BLOCKS, _BLOCKS), **dict.fromkeys(CACHED, _CACHES), "packed": _PACKS,
}  # fmt: skip
SUBJECTS = {"multihead": "layers", **{family.name: family.subject for family in FAMILIES.values()}}
APART = frozenset((*FAMILIES, *(family.name for family in FAMILIES.values())))  # contracts of properties that are not about attention
