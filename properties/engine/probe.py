"""What a callable is and takes: found out with one small call per question."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import oracle
from .cache_target import discover
from .case import Case
from .contracts import ARGUMENTS, CONTRACTS, KIND_OF, recognise
from .coordinates import Array
from .frameworks import framework, likely_frameworks
from .inputs import Inputs, make_inputs
from .layer_target import as_attention
from .supports import MEANT, PARAMETERS, Supports
from .target import CannotRun, Raised, Target, first_line

UNDECLARED = f"what is no attention can be declared: supports['contract'] is one of {', '.join(c for c in CONTRACTS if c != 'attention')}"
UNFLAGGED = "it has no enable_gqa; if it groups heads without being told, declare its parameters with enable_gqa among them"
CACHED_CLASS = "made as cached(batch, kv_heads, dim, capacity, …) and has append"


def make_target(
    name: str,
    function: Callable[..., Any],
    supports: Supports | Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Target:
    """Find out what the callable is and takes, with one small call per question.

    ``supports`` from outside wins over the callable's own attribute of that name. Raises CannotRun.
    """
    if not callable(function):
        raise CannotRun(f"{name} is not callable, but of type {type(function).__name__}")
    if inspect.isclass(function) and not _makes_caches(function, supports):
        raise CannotRun(f"{name} is a class; give a function, or an instance that can be called like one (a class of caches is {CACHED_CLASS})")
    try:
        own = getattr(function, "supports", None)
        merged = supports if isinstance(supports, Supports) else Supports.read({**(own or {}), **(supports or {})})
    except ValueError as error:
        raise CannotRun(f"{name}: {error}") from None
    if device and device.split(":")[0] not in merged.devices:
        raise CannotRun(f"{name} declares devices {', '.join(merged.devices)}, not {device}")
    contract, parameters, others = _signature(name, function, merged)
    candidates = (merged.framework,) if merged.framework else likely_frameworks(function)
    if len(candidates) > 1 and merged.dtypes and "bfloat16" in merged.dtypes:  # which NumPy lacks
        candidates = tuple(sorted(candidates, key=lambda name: name != "torch"))
    refusals: list[str] = []
    broken: list[CannotRun] = []  # declared dtypes that fail in one framework
    firsts: dict[str, str] = {}  # what it said first of each framework, unless of another the same
    for candidate in candidates:
        try:
            fw = framework(candidate)
        except (ImportError, ValueError) as error:
            firsts[candidate] = f"{candidate}: {error}"
            continue
        said = len(refusals)
        target = Target(name, function, contract, merged, fw, parameters or (), fw.dtypes)
        try:
            target = dataclasses.replace(target, **_accepted_dtypes(target, device or "cpu", refusals))
        except CannotRun as error:
            broken.append(error)
            continue
        if target.dtypes:
            says = {p: f"the contract has no such parameter{f'; is it {MEANT[p]}?' if p in MEANT else ''}" for p in others}
            if contract == "packed" and "enable_gqa" not in (parameters or ()):
                says["grouped heads"] = UNFLAGGED
            target = dataclasses.replace(target, untried={**target.untried, **says})
            if contract == "cached":
                return discover(target, device or "cpu")
            return target if parameters is not None else _probe_parameters(target, device or "cpu")
        firsts.setdefault(refusals[said].replace(candidate, ""), refusals[said])
    if broken:  # of frameworks that are found out, the one in which more of the declared dtypes were taken
        raise max(broken, key=lambda error: error.taken)
    answered = [r for r in refusals if r.startswith("it returns")]  # says more than an error
    hint = "" if merged.contract or contract != "attention" or answered else f" ({UNDECLARED})"
    raise CannotRun(f"{name} cannot be called as {CONTRACTS[contract]}: {answered[0] if answered else '; '.join(firsts.values())}{hint}")


def _makes_caches(function: Any, supports: Supports | Mapping[str, Any] | None) -> bool:
    """Whether a class is declared to be one of caches, or has their signature."""
    declared = [facts for facts in (supports, getattr(function, "supports", None)) if facts is not None]
    if any((facts.contract if isinstance(facts, Supports) else facts.get("contract")) == "cached" for facts in declared):
        return True
    try:
        return recognise(inspect.signature(function).parameters) == "cached"
    except (TypeError, ValueError):
        return False


def _signature(name: str, function: Callable[..., Any], supports: Supports) -> tuple[str, tuple[str, ...] | None, list[str]]:
    """The contract, the known parameters that the callable takes (None if only a call can tell), and its other, optional ones."""
    try:
        formal = inspect.signature(_called(function)).parameters
    except (TypeError, ValueError):
        return "attention", supports.parameters, []
    open_ended = any(p.kind is p.VAR_KEYWORD for p in formal.values())
    contract = supports.contract or recognise(formal)
    kind = KIND_OF.get(contract)
    needed = ARGUMENTS[contract]
    positional = [p for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < needed and not any(p.kind is p.VAR_POSITIONAL for p in formal.values()):
        raise CannotRun(
            f"{name} takes {len(positional)} positional argument{'s' * (len(positional) != 1)}, "
            f"not the {needed} of {CONTRACTS[contract]}"
        )
    required = [p.name for p in positional[needed:] if p.default is p.empty]
    required += [p.name for p in formal.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    given = kind.given(contract, formal) if kind else ("num_heads",)
    required = [p for p in required if p not in given]
    if required:
        raise CannotRun(
            f"{name} requires {', '.join(required)}, which {CONTRACTS[contract]} does not give; wrap it in a function "
            "that does"
        )
    taken: tuple[str, ...] | None = tuple(p for p in PARAMETERS if p in formal)
    if supports.parameters is not None:
        taken = supports.parameters
    elif kind:
        taken = kind.options(contract, formal)
    elif open_ended:
        taken = None
    optional = [p.name for p in list(formal.values())[needed:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = () if kind else PARAMETERS  # of an attention; what it takes and does not support is named elsewhere
    return contract, taken, [p for p in optional if p not in (*(taken or ()), *known, *given)]


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What says how it is called: of a module that passes on whatever it is given, its ``forward``."""
    forward = getattr(function, "forward", None)
    return forward if callable(forward) and not inspect.isroutine(function) else function


def smoke_inputs(supports: Supports, dtype: str, device: str) -> Inputs:
    """One small call with all sizes different, no feature used."""
    dim = supports.head_dims[0] if supports.head_dims else 4
    return make_inputs(Case(batch=2, kv_heads=3, queries=5, keys=5, dim=dim, dtype=dtype, device=device))


def _accepted_dtypes(target: Target, device: str, refusals: list[str]) -> dict[str, Any]:
    """Which dtypes the target takes; the others, with what it said, are not tried and named in the report."""
    accepted: list[str] = []
    untried: dict[str, str] = {}
    wanted = target.supports.dtypes or (("float64",) if target.contract == "buckets" else target.framework.dtypes)
    able = [dtype for dtype in target.framework.dtypes if dtype in wanted]
    if not able:
        refusals.append(f"{target.framework.name} has no {' or '.join(wanted)}")
    for dtype in able:
        try:
            _smoke(target, dtype, device)
        except CannotRun as error:
            refusals.append(str(error))
            if target.supports.dtypes:
                broken = CannotRun(f"{target.name} declares dtype {dtype}, but: {error}")
                broken.taken = len(accepted)
                raise broken from None
            untried[dtype] = str(error)
        else:
            accepted.append(dtype)
    return {"dtypes": tuple(accepted), "untried": untried}


def _smoke(target: Target, dtype: str, device: str) -> None:
    if target.contract in KIND_OF:
        return _smoke_apart(target, dtype, device)
    inputs = smoke_inputs(target.supports, dtype, device)
    batch, heads, queries, _ = inputs.shape
    wanted = (batch, heads, queries, inputs.v.shape[3])
    call = as_attention(target)
    try:
        out = call(inputs)
    except Raised as raised:
        raise CannotRun(f"on {dtype} {target.framework.name} arrays q {inputs.q.shape} it {_blame(raised)}") from None
    if out.shape != wanted:
        if out.shape == (batch, queries, heads, wanted[3]):
            raise CannotRun(
                f"it returns (batch, length, heads, dim) {out.shape} for q {inputs.q.shape}: "
                "declare supports['layout'] = 'blhd' if it also takes that layout"
            )
        raise CannotRun(f"it returns shape {out.shape} for q, k, v of {inputs.q.shape}; expected {wanted}")
    if target.contract == "attention" and reads_blhd(target, inputs, out):
        raise CannotRun("it answers as if q, k and v were (batch, length, heads, dim): declare supports['layout'] = 'blhd'")


def reads_blhd(target: Target, inputs: Inputs, out: Array) -> bool:
    """Whether an answer is that of an attention over the third axis from the end, and not over the second. A hint, no verdict."""
    def answer(swapped: bool) -> Array:
        q, k, v = (x.swapaxes(1, 2) if swapped else x for x in (inputs.q, inputs.k, inputs.v))
        exact = oracle.solve(oracle.Problem(q, k, v, inputs.effective_scale)).out
        return exact.swapaxes(1, 2) if swapped else exact

    with np.errstate(invalid="ignore"):
        right, other = (float(np.abs(out - answer(swapped)).max(initial=0.0)) for swapped in (False, True))
    return target.supports.layout == "bhld" and other < 0.01 < 0.1 < right  # the numbers are of size one


def _smoke_apart(target: Target, dtype: str, device: str) -> None:
    try:
        wrong = KIND_OF[target.contract].smoke(target, dtype, device)
    except Raised as raised:
        raise CannotRun(f"on {dtype} it {_blame(raised)}") from None
    if wrong:
        raise CannotRun(wrong)


def _blame(raised: Raised) -> str:
    said = first_line(raised.error)
    return said if said.startswith("returned") else f"raised {raised}"


def _probe_parameters(target: Target, device: str) -> Target:
    """For a callable whose signature does not tell: give it one parameter at a time, and see."""
    inputs = smoke_inputs(target.supports, target.dtypes[0], device)
    trials: dict[str, Inputs] = {
        "attn_mask": inputs.but(mask=np.ones((5, 5), dtype=bool) if "bool" in target.supports.mask_kinds else np.zeros((5, 5)))
                           .said(target.supports.mask_axes),
        "is_causal": inputs.but(is_causal=True),
        "scale": inputs.but(scale=0.5),
        "enable_gqa": make_inputs(Case(batch=2, kv_heads=3, group=2, queries=5, keys=5, dim=inputs.q.shape[3],
                                       dtype=inputs.dtype, device=device)),
    }
    taken: list[str] = []
    untried = dict(target.untried)
    for parameter, trial in trials.items():
        try:
            target(trial)
        except Raised as raised:
            untried[parameter] = str(raised)
        else:
            taken.append(parameter)
    return dataclasses.replace(target, parameters=tuple(taken), untried=untried)
