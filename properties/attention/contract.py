"""The contract of an attention: how a callable of it is recognised, first called, and put to properties.

    attention(q, k, v, *, attn_mask=None, is_causal=False, scale=None, enable_gqa=False) → (batch, heads, length, value_dim)

Shapes are (batch, heads, length, dim). Semantics are those of PyTorch's ``scaled_dot_product_attention``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..engine.cases.draws import Strategy
from ..engine.contained.stub import asked_quickly
from ..engine.core import declare as declaring
from ..engine.core.contract import Contract, Dtypes, Formal, Topic, register
from ..engine.core.declare import Property
from ..engine.core.finding import Finding
from ..engine.core.picture import Picture
from ..engine.core.supports import PARAMETERS
from ..engine.core.target import Target
from ..engine.core.trial import Trial as BaseTrial
from ..engine.core.trial import Violation
from . import backward, cases, dialect, dialect_parameters, discover, measure, pictures, precision, question
from .answers import answers, claims
from .case import Case
from .cases import ATTENTION, LARGE_LOGITS, PLAIN_CALLS
from .conventions import with_conventions
from .edges import CLAIMS, claimed
from .edges import edge as at_edge
from .refusals import with_refusals
from .reread import disturb, larger, unsettle
from .trial import Trial
from .written import with_documentation, with_what_was_spoken

declare = partial(declaring.declare, contract=ATTENTION.name)


class Attention(Contract):
    """Queries, keys and values in, one output a query."""

    name = ATTENTION.name
    call = "attention(q, k, v, *, attn_mask=None, is_causal=False, scale=None, enable_gqa=False)"
    arguments = 3
    topics: tuple[Topic, ...] = (ATTENTION,)
    pair: tuple[str, ...] = ("output_is_inside_the_bound",)
    pair_too: tuple[str, ...] = (
        "output_has_the_right_form",
        "calls_between_change_nothing",
        "inputs_are_unchanged",
        "process_is_left_as_it_was",
    )
    pair_gradients: tuple[str, ...] = ("gradients_are_inside_the_bound", "bias_gradient_is_inside_the_bound")
    pair_large: Mapping[str, Any] = LARGE_LOGITS
    pair_only: tuple[str, Mapping[str, Any]] | tuple[()] = ("constant_values_are_returned", PLAIN_CALLS)
    mentions: tuple[str, ...] = ("multihead",)
    known: tuple[str, ...] = PARAMETERS
    given: tuple[str, ...] = ("num_heads",)
    fallback = True
    probed = True
    capabilities: tuple[str, ...] = tuple(backward.CAPABILITIES)
    batched = True
    repeats = True

    def recognise(self, formal: Formal) -> bool:
        return True

    def options(self, formal: Formal) -> tuple[str, ...]:
        return tuple(name for name in self.known if name in formal and not question.is_flag(formal[name]))

    def untried(self, parameters: tuple[str, ...]) -> dict[str, str]:
        beside = {"key_padding_mask": "beside attn_mask it is not tried"}
        own = beside if self.name == ATTENTION.name and {"attn_mask", "key_padding_mask"} <= set(parameters) else {}
        return {**super().untried(parameters), **own}

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        wrong = discover.smoke(target, dtype, device)
        if not wrong and not target.asked_enough() and (axes := discover.reads_other_axes(target, dtype, device)):
            declare = ": declare supports['layout'] = 'blhd'" if axes == "(batch, length, heads, dim)" else ""
            return f"it answers as if q, k and v were {axes}{declare}"
        return wrong

    def off(self, target: Target, device: str) -> float:
        return dialect.off(target, device)

    def discover(self, target: Target, device: str, open_ended: bool) -> Target:
        target = discover.with_few_shapes(target, target, device)
        if {"attn_mask", "kv_lengths"} & set(target.parameters) and target.learned:
            target = dialect_parameters.taken_with_masks(target, device)
        return discover.probe_parameters(target, device) if open_ended else target

    def handshake(self, target: Target, device: str) -> Target:
        with asked_quickly(target.framework):
            if self.name == ATTENTION.name:
                target = dialect.masks_of_other_axes(target, device) or target
                target = dialect.square_where_causal(target, device) or target
                target = dialect.square_alone(target, device) or target
                target = dialect.with_groups(target, device)
            return with_what_was_spoken(with_documentation(with_conventions(with_refusals(target, device), device)))

    def paired(self, target: Target, reference: Target) -> Target:
        """What hides later keys in every call is asked for its last row, which sees them all: so it would agree with what hides nothing."""
        for one, other, what in ((target, reference, "it"), (reference, target, "the reference")):
            always = [each.learned.get("causality", "").startswith("always") for each in (one, other)]
            if always == [True, False] and "is_causal" not in other.parameters:
                return replace(target, wrong={**target.wrong, "pair": f"{what} alone hides the keys behind a query in every call"})
        return target

    def expected(self, target: Target, prop: Property) -> bool:
        other_scale = "width" in target.supports.default_scale and prop.domain.get("fewer_heads")
        return super().expected(target, prop) and not other_scale and not (target.supports.window and prop.domain.get("moves"))

    def questions(self, target: Target) -> dict[str, str]:
        return answers(target)

    def learned_supports(self, target: Target, edges: Collection[str] | None = None) -> dict[str, Any]:
        otherwise = {key for edge in (CLAIMS if edges is None else edges) for key in CLAIMS.get(edge, ())}
        return {key: value for key, value in claims(target).items() if key not in otherwise or value is False}

    def learn(self, target: Target, formal: Formal, declared: frozenset[str], device: str, works: bool) -> Target | None:
        if self.name != ATTENTION.name or (works and target.supports.parameters is not None):
            return None
        formal = {name: p for name, p in formal.items() if not question.is_flag(p)}
        works = works and not question.out_of_order(formal) and not dialect.refuses_its_flag(target, formal, device)
        works = works and not dialect.is_right_of_three_axes(target, device)
        if works and not question.other_names(formal):
            if dialect.always_hides(target, device):
                return dialect.learn(target, formal, declared, device, works=False)
            dialect.heed_name(target, device)
            return dialect.of_one_dim(target, device)
        learned = dialect.learn(target, formal, declared, device, works)
        return learned if learned.learned or not works else replace(target, untried={**target.untried, **learned.untried})

    def trial(self, prop: Property) -> type[BaseTrial]:
        return Trial

    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        return cases.cases(target, prop, device, dtypes)

    def refused(self, target: Target, prop: Property, dtypes: Dtypes) -> str:
        return cases.refused(target, prop, dtypes)

    def lacks(self, target: Target, capability: str) -> str:
        return backward.refusal(target, capability)

    def features(self, target: Target, case: Case) -> Iterable[str]:
        return cases.features(case)

    def outside(self, target: Target, prop: Property, case: Case) -> str:
        return cases.outside(target, prop, case)

    def varies(self, target: Target, prop: Property, case: Case, name: str) -> bool:
        return cases.varies(target, prop, case, name)

    def legal(self, target: Target, case: Case) -> bool:
        """No mask that is not taken."""
        return case.mask == "none" or (case.mask_kind in target.supports.mask_kinds and case.mask_axes in target.supports.mask_axes)

    def table(self, prop: Property, name: str) -> Any:
        return cases.table(prop, name)

    def sizes(self, target: Target, arrays: Sequence[tuple[tuple[int, ...], str]]) -> tuple[dict[str, Any], str]:
        return cases.as_called(target, arrays)

    def disturb(self, trial: Any) -> None:
        disturb(trial)

    def unsettle(self, target: Target, case: Case) -> None:
        unsettle(target, case)

    def larger(self, case: Case, prop: Property) -> list[Case]:
        return larger(case, prop)

    def edge(self, prop: Property, case: Case, violation: Violation, trial: BaseTrial) -> str:
        edge = super().edge(prop, case, violation, trial) or at_edge(case, violation, trial)
        return "" if claimed(edge, violation, trial.target.declared) else edge

    def measure(self, target: Target, finding: Finding) -> tuple[Any, str] | None:
        return measure.measured(target, finding)

    def pictures(self, target: Target, finding: Finding, like: Sequence[Any]) -> tuple[Picture, ...]:
        return pictures.pictures(target, finding, like)

    def looser(self, target: Target, finding: Finding) -> str | None:
        return precision.looser_kind(target, finding)


register(Attention())
