"""What a callable is and takes: found out with one small call per question."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..contained.link import Gone
from ..contained.load import NotLoaded, called, instance_of, library_of
from ..contained.signatures import with_signature
from ..contained.stub import Stub, asked_quickly
from ..core.contract import Contract, contract_named, contracts, recognised
from ..core.pace import Pace, asks_for_gpu
from ..core.supports import MEANT, Supports
from ..core.target import CannotRun, Raised, Target, blame
from ..frameworks import Framework, framework, likely_frameworks, with_modules


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
    function = with_signature(function)
    if library := function.library if isinstance(function, Stub) else library_of(function):  # Keras' may be PyTorch's, too
        try:
            made = _made_target(name, function, supports, device)
            if gap := made.kind.off(made, device or "cpu"):
                raise CannotRun(f"it is off by {gap:.2g}")
            return made
        except CannotRun as error:
            raise CannotRun(
                f"{name} is a module of {library}; modules with weights are understood where they are PyTorch's. Its attention can be checked "
                f"as a function of queries, keys and values" + ("" if _is_class(function) else f" (asked as one, {error})")
            ) from None
    adopted = _adopted(name, function, supports, device or "cpu")
    if isinstance(adopted, Target):
        return adopted
    function = function if adopted is None else adopted
    return _made_target(name, function, supports, device)


def _made_target(name: str, function: Callable[..., Any], supports: Supports | Mapping[str, Any] | None, device: str | None) -> Target:
    if _is_class(function) and not _makes(function, supports):
        function = _instance(name, function)
    try:
        own = _own(function)
        merged = supports if isinstance(supports, Supports) else Supports.read({**own, **(supports or {})})
        _check_parameters(function, merged)
    except ValueError as error:
        raise CannotRun(f"{name}: {error}") from None
    if device and device.split(":")[0] not in merged.devices:
        raise CannotRun(f"{name} declares devices {', '.join(merged.devices)}, not {device}")
    declared = _declared(own, supports)
    alone = frozenset() if isinstance(supports, Supports) else frozenset(own) - set(supports or {})
    with asked_quickly(function):
        understood = _understood(name, function, merged, declared, device)
    return dataclasses.replace(understood, declared=declared, own=alone)


def _is_class(function: Callable[..., Any]) -> bool:
    """Wherever it is."""
    return function.is_class if isinstance(function, Stub) else inspect.isclass(function)


def _instance(name: str, made: Any) -> Callable[..., Any]:
    """What a class makes that asks for nothing. Raises CannotRun if it asks for something, or makes what is not called like a function."""
    try:
        formal = inspect.signature(made).parameters.values()
        asks = any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in formal)
    except (TypeError, ValueError):
        asks = True  # as far as is known
    if asks:
        makes = " or ".join(kind.call for kind in contracts().values() if kind.makes)
        raise CannotRun(
            f"{name} is a class; give a function, or an instance that can be called like one (a class can be {makes}; modules with weights "
            "are understood where they are PyTorch's)"
        )
    try:
        return with_signature(made.as_made() if isinstance(made, Stub) else instance_of(made))
    except NotLoaded as error:
        raise CannotRun(f"{name}: {error}") from None
    except Gone as gone:
        raise CannotRun(f"{name} cannot be made: it {gone}") from None


def known_target(name: str, function: Callable[..., Any]) -> Target:
    """The target of a callable whose own ``supports`` and signature say all: it is not called. Raises CannotRun."""
    adopted = _adopted(name, function, None, "cpu")
    if isinstance(adopted, Target):
        return adopted
    function = function if adopted is None else adopted
    own = _own(function)
    merged = Supports.read(own)
    contract, parameters, _ = _signature(name, function, merged)
    if parameters is None or merged.framework is None:
        return make_target(name, function)
    fw = framework(merged.framework)
    wanted = merged.dtypes or contract.dtypes or fw.dtypes
    dtypes = tuple(dtype for dtype in fw.dtypes if dtype in wanted)
    target = Target(name, function, contract.name, merged, fw, parameters, dtypes, declared=frozenset(own))
    return target if contract.probed else contract.discover(target, "cpu", open_ended=False)


def _understood(name: str, function: Callable[..., Any], merged: Supports, declared: frozenset[str], device: str | None) -> Target:
    """The target, called as its contract says, or as was learned. Raises CannotRun."""
    try:
        target = _probed(name, function, merged, device)
    except CannotRun as error:
        return _spoken(name, function, merged, declared, device or "cpu", error)
    formal = _formal(function)
    try:
        return _checked(target.kind.learn(target, formal, declared, device or "cpu", True), device or "cpu") or target
    except CannotRun as error:
        if error.final:
            raise
        return target


def _adopted(name: str, thing: Any, supports: Supports | Mapping[str, Any] | None, device: str) -> Target | Callable[..., Any] | None:
    """The target, if a contract takes what is no plain callable, or what it is called as; None for all else. Raises CannotRun."""
    shared = tuple(thing.shared(framework(name)) for name in thing.modules) if isinstance(thing, Stub) else ()
    for fw in shared or with_modules(thing):
        try:
            merged = supports if isinstance(supports, Supports) else Supports.read({**_own(thing), **(supports or {})})
        except ValueError as error:
            raise CannotRun(f"{name}: {error}") from None
        if device.partition(":")[0] not in fw.devices():
            raise CannotRun(f"{name} takes arrays of {fw.name}, which has no device {device!r} here")
        for kind in contracts().values():
            if (made := kind.adopt(name, thing, merged, fw if shared else fw.on(device), device)) is not None:
                return made
    return None


def _own(function: Callable[..., Any]) -> Mapping[str, Any]:
    """What a callable says of itself; a method of that name says something else. Raises ValueError if that is no mapping."""
    own = getattr(function, "supports", None)
    if inspect.ismethod(own) or (isinstance(function, type) and callable(own)):
        return {}
    if own is not None and not isinstance(own, Mapping):
        raise ValueError(f"its attribute supports is {own!r}; it maps keys to values, for example {{'zero_sizes': False}}")
    return own or {}


def _declared(own: Mapping[str, Any], supports: Supports | Mapping[str, Any] | None) -> frozenset[str]:
    """The keys that somebody has declared."""
    if isinstance(supports, Supports):
        return frozenset(f.name for f in dataclasses.fields(Supports) if getattr(supports, f.name) != f.default)
    return frozenset((*own, *(supports or {})))


def _formal(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(called(function)).parameters
    except (TypeError, ValueError):
        return {}


def _spoken(name: str, function: Callable[..., Any], supports: Supports, declared: frozenset[str], device: str, error: CannotRun) -> Target:
    """The target in its own dialect, where it cannot be called as its contract says. Raises that error, with the nearest reading."""
    formal = _formal(function)
    try:
        contract = contract_named(supports.contract) if supports.contract else recognised(formal)
    except ValueError:
        raise error from None
    nearest, pace = "", Pace()  # what is too slow to be asked with the arrays of one library is not asked with those of another
    for candidate in _candidates(function, supports):
        try:
            fw = _framework(candidate, function, device or "cpu")
        except (ImportError, ValueError):
            continue
        if not formal or device.partition(":")[0] not in fw.devices():
            continue
        pace.strange = 0
        plain = Target(name, function, contract.name, supports, fw, (), fw.dtypes, pace=pace)
        try:
            learned = _checked(contract.learn(plain, formal, declared, device, False), device)
        except CannotRun as said:
            if said.final:
                raise
            nearest = nearest or str(said)
            continue
        if learned is not None:
            return learned
    if nearest:
        raise CannotRun(f"{error}; {nearest}") from None
    raise error


def _checked(learned: Target | None, device: str) -> Target | None:
    """What was learned, with what else calls can show. Raises CannotRun."""
    if learned is None:
        return None
    refusals: list[str] = []
    taken = _accepted_dtypes(learned, device, refusals)
    if not taken["dtypes"]:
        raise CannotRun(refusals[0])
    untried = {**learned.untried, **taken["untried"]}
    learned = dataclasses.replace(
        learned, dtypes=taken["dtypes"], untried={k: why for k, why in untried.items() if k not in learned.learned}
    )
    return learned.kind.discover(learned, device, open_ended=False)


def _framework(name: str, function: Callable[..., Any], device: str) -> Framework:
    """The framework, its arrays on a device, and where a target in another process sees them. Raises ImportError, ValueError."""
    fw, kind = framework(name), device.partition(":")[0]
    if not isinstance(function, Stub):
        return fw.on(device) if kind in fw.devices() else fw
    if kind not in fw.shares:
        raise ValueError(f"arrays of {name}{f' on {kind}' * bool(fw.shares)} do not reach a process of its own; give --in-process")
    return function.shared(fw)


def _candidates(function: Callable[..., Any], supports: Supports) -> tuple[str, ...]:
    """The frameworks to try; first the one that has more of the declared dtypes."""
    likely = function.likely if isinstance(function, Stub) else ()
    candidates = (supports.framework,) if supports.framework else likely or likely_frameworks(function)
    if len(candidates) > 1 and supports.dtypes:
        candidates = tuple(sorted(candidates, key=lambda name: -len(set(supports.dtypes or ()) & _dtypes_of(name))))
    return candidates


def _probed(name: str, function: Callable[..., Any], merged: Supports, device: str | None) -> Target:
    """The target, called as its contract says. Raises CannotRun."""
    try:
        contract, parameters, others = _signature(name, function, merged)
    except ValueError as error:
        raise CannotRun(f"{name}: {error}") from None
    candidates = _candidates(function, merged)
    refusals: list[str] = []
    broken: list[CannotRun] = []  # declared dtypes that fail in one framework
    firsts: dict[str, str] = {}  # what it said first of each framework, unless of another the same
    for candidate in candidates:
        try:
            fw = _framework(candidate, function, device or "cpu")
        except (ImportError, ValueError) as error:
            firsts[candidate] = f"{candidate}: {error}"
            continue
        if device and device.partition(":")[0] not in fw.devices():
            firsts[candidate] = f"{candidate} has no device {device!r} here"
            continue
        said = len(refusals)
        target = Target(name, function, contract.name, merged, fw, parameters or (), fw.dtypes)
        try:
            target = dataclasses.replace(target, **_accepted_dtypes(target, device or "cpu", refusals))
        except CannotRun as error:
            broken.append(error)
            continue
        if target.dtypes:
            says = {p: f"the contract has no such parameter{f'; is it {MEANT[p]}?' if p in MEANT else ''}" for p in others}
            says |= {p: "a flag, as its default says, and no number" for p in others if p in contract.known}
            target = dataclasses.replace(target, untried={**target.untried, **says, **contract.untried(parameters or ())})
            return contract.discover(target, device or "cpu", open_ended=parameters is None)
        firsts.setdefault(refusals[said].replace(candidate, ""), refusals[said])
    if broken:  # of frameworks that are found out, the one in which more of the declared dtypes were taken
        raise max(broken, key=lambda error: error.taken)
    answered = [r for r in refusals if r.startswith("it returns")]  # says more than an error
    known = ", ".join(kind.name for kind in contracts().values() if not kind.fallback)
    undeclared = f" (what is no {contract.name} can be declared: supports['contract'] is one of {known})"
    hint = "" if merged.contract or not contract.fallback or answered else undeclared
    if (device or "cpu") == "cpu" and any(map(asks_for_gpu, firsts.values())):
        hint = f" (--device cuda puts its arrays on a GPU; {undeclared[2:]}" if hint else " (--device cuda puts its arrays on a GPU)"
    raise CannotRun(f"{name} cannot be called as {contract.call}: {answered[0] if answered else '; '.join(firsts.values())}{hint}")


def _dtypes_of(name: str) -> set[str]:
    try:
        return set(framework(name).dtypes)
    except (ImportError, ValueError):
        return set()


def _makes(function: Any, supports: Supports | Mapping[str, Any] | None) -> bool:
    """Whether a class is declared to make what is checked, or has the signature of such a contract."""
    for facts in (supports, getattr(function, "supports", None)):
        declared = facts.contract if isinstance(facts, Supports) else facts.get("contract") if isinstance(facts, Mapping) else None
        if declared:
            return str(declared) in contracts() and contract_named(str(declared)).makes
    try:
        return recognised(inspect.signature(function).parameters).makes
    except (TypeError, ValueError):
        return False


def _signature(name: str, function: Callable[..., Any], supports: Supports) -> tuple[Contract, tuple[str, ...] | None, list[str]]:
    """The contract, the known parameters that the callable takes (None if only a call can show), and its other, optional ones."""
    try:
        formal = inspect.signature(called(function)).parameters
    except (TypeError, ValueError):
        return recognised({}), supports.parameters, []
    open_ended = any(p.kind is p.VAR_KEYWORD for p in formal.values())
    contract = contract_named(supports.contract) if supports.contract else recognised(formal)
    needed = contract.arguments
    positional = [p for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < needed and not any(p.kind is p.VAR_POSITIONAL for p in formal.values()):
        raise CannotRun(
            f"{name} takes {len(positional)} positional argument{'s' * (len(positional) != 1)}, not the {needed} of {contract.call}"
        )
    required = [p.name for p in positional[needed:] if p.default is p.empty]
    required += [p.name for p in formal.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    required = [p for p in required if p not in contract.given]
    if required:
        raise CannotRun(f"{name} requires {', '.join(required)}, which {contract.call} does not give; wrap it in a function that does")
    taken: tuple[str, ...] | None = contract.options(formal)
    if supports.parameters is not None:
        taken = supports.parameters
    elif open_ended and contract.probed:
        taken = None
    optional = [p.name for p in list(formal.values())[needed:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = (*contract.options(formal), *contract.given)
    return contract, taken, [p for p in optional if p not in (*(taken or ()), *known)]


def _check_parameters(function: Callable[..., Any], supports: Supports) -> None:
    """Raises ValueError if a parameter is declared that the contract does not have."""
    for word in supports.parameters or ():
        contract = contract_named(supports.contract) if supports.contract else recognised(_formal(function))
        if not _has_parameter(contract, word):
            raise ValueError(f"supports['parameters'] names {word!r}, which {contract.call} does not have")


def _has_parameter(contract: Contract, name: str) -> bool:
    """Whether a contract has a parameter that can be declared."""
    formal = {f"_{at}": inspect.Parameter(f"_{at}", inspect.Parameter.POSITIONAL_ONLY) for at in range(contract.arguments)}
    formal[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
    return name in (*contract.known, *contract.given, *contract.options(formal))


def _accepted_dtypes(target: Target, device: str, refusals: list[str]) -> dict[str, Any]:
    """Which dtypes the target takes; the others, with what it said, are not tried and named in the report.

    A call that ends the process, or returns no array, refuses nothing: where it takes some dtype, that is for the search to find.
    """
    accepted: list[str] = []
    broke: list[str] = []
    untried: dict[str, str] = {}
    wanted = target.supports.dtypes or target.kind.dtypes or target.framework.dtypes
    able = [dtype for dtype in target.framework.dtypes if dtype in wanted]
    if not able:
        refusals.append(f"{target.framework.name} has no {' or '.join(wanted)}")
    if "bfloat16" in able and target.framework.name == "torch" and os.environ.get("TRITON_INTERPRET") == "1" and not target.supports.dtypes:
        able.remove("bfloat16")
        untried["bfloat16"] = "TRITON_INTERPRET=1 is set, and Triton's interpreter does not compute in it, as its documentation says"
    for dtype in able:
        try:
            wrong = target.kind.smoke(target, dtype, device)
        except Raised as raised:
            wrong = f"on {dtype} it {blame(raised)}"
            broke += [dtype] * (not raised.refuses)
        if not wrong:
            accepted.append(dtype)
            continue
        refusals.append(wrong)
        untried[dtype] = wrong
        if target.supports.dtypes:
            broken = CannotRun(f"{target.name} declares dtype {dtype}, but: {wrong}")
            broken.taken = len(accepted)
            raise broken
    if accepted:
        accepted = [dtype for dtype in able if dtype in accepted or dtype in broke]
    return {"dtypes": tuple(accepted), "untried": {dtype: why for dtype, why in untried.items() if dtype not in accepted}}
