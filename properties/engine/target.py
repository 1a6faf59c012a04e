"""A target: the attention under test, called with carriers and answering in carriers."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import oracle
from .cache_target import discover
from .case import Case
from .contracts import ARGUMENTS, CONTRACTS, KIND_OF, recognise
from .coordinates import Array
from .declare import Property
from .frameworks import Buffers, Framework, framework, likely_frameworks
from .inputs import Inputs, make_inputs
from .supports import MEANT, PARAMETERS, Supports

# Layouts that differ between the tensors; every other layout is that of all of them.
LAYOUT_OF = {
    "expanded": {"q": "contiguous", "mask": "contiguous"},
    "mixed": {"q": "contiguous", "k": "transposed", "v": "padded", "mask": "contiguous"},
}


class CannotRun(Exception):
    """The target cannot be checked at all; the message says in one sentence what to change."""


class Raised(Exception):
    """The target raised on a legal call."""

    def __init__(self, error: BaseException, hint: str = "") -> None:
        self.error = error
        self.hint = hint  # what may not be supported, and the key that declares it
        super().__init__(f"{type(error).__name__}: {first_line(error)}")


@dataclass(frozen=True, eq=False)
class Target:
    """An attention that has passed its first call. Make one with ``make_target``."""

    name: str
    function: Callable[..., Any]
    contract: str
    supports: Supports
    framework: Framework
    parameters: tuple[str, ...]
    dtypes: tuple[str, ...]
    untried: Mapping[str, str] = field(default_factory=dict)  # what is not tried → why
    mixes_heads: bool = False  # a layer seen as its kernel: 0 times what overflows in one head is NaN in all heads of the row
    address: str | None = ""  # how the command line finds it; empty: by its name; None: not at all

    def buffers(self) -> Buffers:
        """Fresh memory for the calls of one case."""
        return Buffers(self.framework)

    def arrays(self, inputs: Inputs, buffers: Buffers) -> tuple[list[Any], dict[str, Any]]:
        """The positional and keyword arguments of the ``attention`` call, in the framework's own arrays."""
        def place(name: str, carrier: Array) -> Any:
            layout = LAYOUT_OF.get(inputs.layout, {}).get(name, inputs.layout)
            return buffers.array(name, carrier, inputs.dtype, inputs.device, layout)

        tensors = [place(name, getattr(inputs, name)) for name in ("q", "k", "v")]
        if self.supports.layout == "blhd":
            tensors = [self.framework.permute(x, (0, 2, 1, 3)) for x in tensors]
        defaults = {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": True, "dropout_p": 0.0}
        taken = self.parameters if inputs.explicit else ()
        options: dict[str, Any] = {name: value for name, value in defaults.items() if name in taken}
        if inputs.mask is not None:
            options["attn_mask"] = self.ranked(place("mask", inputs.mask))
        if inputs.is_causal:
            options["is_causal"] = True
        if inputs.scale is not None:
            options["scale"] = inputs.scale
        if inputs.group != 1:
            options["enable_gqa"] = True
        if inputs.window is not None:
            options["window_size"] = tuple(-1 if side is None else side for side in inputs.window)
        if inputs.softcap is not None:
            options["softcap"] = inputs.softcap
        for name, carrier in (("alibi_slopes", inputs.slopes), ("sinks", inputs.sinks), ("kv_lengths", inputs.lengths)):
            if carrier is not None:
                options[name] = place(name, carrier)
        if inputs.return_lse:
            options["return_lse"] = True
        if inputs.dropout:
            options["dropout_p"] = inputs.dropout
        return tensors, options

    def ranked(self, mask: Any) -> Any:
        """A mask with leading axes of size 1, up to the rank that is declared."""
        for _ in range(self.supports.mask_rank - len(mask.shape)):
            mask = mask[None]
        return mask

    def answer(self, inputs: Inputs, buffers: Buffers) -> Any:
        """All that the target returns. Raises Raised if it raises."""
        tensors, options = self.arrays(inputs, buffers)
        with self.framework.chance(inputs.chance) if inputs.dropout else nullcontext():
            return self.apply(*tensors, **options)

    def apply(self, *arguments: Any, **options: Any) -> Any:
        """Call it with arrays of the framework. Raises Raised if it raises."""
        try:
            with np.errstate(all="ignore"):
                return self.function(*arguments, **options)
        except (Exception, SystemExit) as error:
            raise Raised(error, _hint(options)) from error

    def call(self, inputs: Inputs, buffers: Buffers) -> Any:
        """The target's own output, unread. Raises Raised if the target raises."""
        result = self.answer(inputs, buffers)
        return result[0] if isinstance(result, tuple | list) and result else result

    def read(self, result: Any) -> Array:
        """The answer as a carrier (B, H, L, Dv). Raises Raised if it is no array of the framework."""
        if not self.framework.is_array(result):
            raise Raised(TypeError(f"returned {type(result).__name__}, not an array of {self.framework.name}"))
        out = self.framework.read(result)
        return out.transpose(0, 2, 1, 3) if self.supports.layout == "blhd" and out.ndim == 4 else out

    def __call__(self, inputs: Inputs, buffers: Buffers | None = None) -> Array:
        return self.read(self.call(inputs, buffers or self.buffers()))


def _hint(options: Mapping[str, Any]) -> str:
    """What of a call that raised may not be supported, and the key that declares it."""
    masks = [options[name] for name in ("attn_mask", "memory_mask") if options.get(name) is not None]
    hint = " (a mask is not taken together with is_causal? declare mask_and_causal = false)" if masks and options.get("is_causal") else ""
    return hint + " (a mask of rank 0 or 1 is not taken? declare mask_rank = 2)" * any(len(mask.shape) < 2 for mask in masks)


def first_line(error: BaseException) -> str:
    """What an exception says, without what follows it."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


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
        raise CannotRun(f"{name} is a class; give a function, or an instance that can be called like one")
    try:
        own = getattr(function, "supports", None)
        merged = supports if isinstance(supports, Supports) else Supports.read({**(own or {}), **(supports or {})})
    except ValueError as error:
        raise CannotRun(f"{name}: {error}") from None
    if device and device.split(":")[0] not in merged.devices:
        raise CannotRun(f"{name} declares devices {', '.join(merged.devices)}, not {device}")
    contract, parameters, others = _signature(name, function, merged)
    candidates = (merged.framework,) if merged.framework else likely_frameworks(function)
    refusals: list[str] = []
    firsts: dict[str, str] = {}  # what it said first of each framework, unless of another the same
    for candidate in candidates:
        try:
            fw = framework(candidate)
        except (ImportError, ValueError) as error:
            firsts[candidate] = f"{candidate}: {error}"
            continue
        said = len(refusals)
        target = Target(name, function, contract, merged, fw, parameters or (), fw.dtypes)
        target = dataclasses.replace(target, **_accepted_dtypes(target, device or "cpu", refusals))
        if target.dtypes:
            says = {p: f"the contract has no such parameter{f'; is it {MEANT[p]}?' if p in MEANT else ''}" for p in others}
            target = dataclasses.replace(target, untried={**target.untried, **says})
            if contract == "cached":
                return discover(target, device or "cpu")
            return target if parameters is not None else _probe_parameters(target, device or "cpu")
        firsts.setdefault(refusals[said].replace(candidate, ""), refusals[said])
    answered = [r for r in refusals if r.startswith("it returns")]  # says more than an error
    raise CannotRun(f"{name} cannot be called as {CONTRACTS[contract]}: {answered[0] if answered else '; '.join(firsts.values())}")


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
        formal = inspect.signature(function).parameters
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
    return contract, taken, [p for p in optional if p not in (*(taken or ()), *PARAMETERS, *given)]


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
                raise CannotRun(f"{target.name} declares dtype {dtype}, but: {error}") from None
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
        "attn_mask": inputs.but(mask=np.ones((5, 5), dtype=bool)),
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


# ---------------------------------------------------------------- layers


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """The arguments of one call of a ``multihead`` layer, as carriers."""

    query: Array  # (B, L, E)
    key: Array  # (B, S, E)
    value: Array  # (B, S, E)
    weights: Mapping[str, Array]  # w_q w_k w_v w_o (E, E), y = x Wᵀ + b; b_q b_k b_v b_o (E,) or absent
    num_heads: int
    mask: Array | None = None  # broadcasts to (B, H, L, S); True = attend
    padding: Array | None = None  # (B, S) bool; True = padding
    is_causal: bool = False
    need_weights: bool = True
    dtype: str = "float64"
    device: str = "cpu"

    def but(self, **changes: Any) -> LayerInputs:
        """The same call with some arguments changed."""
        return dataclasses.replace(self, **changes)


def call_layer(
    target: Target, inputs: LayerInputs, buffers: Buffers
) -> tuple[Array, Array | None, tuple[tuple[int, ...], str, str]]:
    """(out (B, L, E), weights (B, H, L, S) or None, form of out: shape, dtype, device). Raises Raised."""
    def place(name: str, carrier: Array) -> Any:
        return buffers.array(name, carrier, inputs.dtype, inputs.device, "contiguous")

    tensors = [place(name, getattr(inputs, name)) for name in ("query", "key", "value")]
    weights = {name: place(name, w) for name, w in inputs.weights.items()}
    if inputs.query is inputs.key and inputs.key is inputs.value:
        tensors = tensors[:1] * 3  # self-attention: one and the same array, as libraries look for
    options: dict[str, Any] = {"num_heads": inputs.num_heads}
    if inputs.mask is not None:
        options["attn_mask"] = target.ranked(place("mask", inputs.mask))
    if inputs.padding is not None:
        options["key_padding_mask"] = place("padding", inputs.padding)
    if inputs.is_causal:
        options["is_causal"] = True
    if "need_weights" in target.parameters:
        options["need_weights"] = inputs.need_weights
    result = target.apply(*tensors, weights, **options)
    try:
        out, attended = result if isinstance(result, tuple | list) else (result, None)
    except ValueError as error:
        raise Raised(error) from error
    for array in (out, attended):
        if array is not None and not target.framework.is_array(array):
            raise Raised(TypeError(f"returned {type(array).__name__}, not an array of {target.framework.name}"))
    weights_read = None if attended is None else target.framework.read(attended)
    return target.framework.read(out), weights_read, target.framework.describe(out)


def subject(target: Target, prop: Property) -> Target:
    """What a property is put to: of a layer, where it is about attention, the attention inside."""
    return as_attention(target) if prop.contract == "attention" else target


def as_attention(target: Target) -> Target:
    """A layer seen as the attention inside it; an attention is returned as it is.

    With identity projections every projection is exact (a product by 1 and sums with 0), so that the layer equals its
    kernel and every property of attention holds of it, with the kernel's own tight bound.
    """
    if target.contract != "multihead":
        return target
    kept: dict[Any, Any] = {}

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        (batch, heads, _, dim), dtype, device = target.framework.describe(q)
        width = heads * dim
        key = (width, dtype, device)
        if key not in kept:
            identity = target.framework.full((width, width), 0.0, dtype, device)
            target.framework.assign(identity, np.eye(width))
            zeros = target.framework.full((width,), 0.0, dtype, device)
            kept[key] = {**dict.fromkeys(("w_q", "w_k", "w_v", "w_o"), identity),
                         **dict.fromkeys(("b_q", "b_k", "b_v", "b_o"), zeros)}
        folded = [target.framework.permute(x, (0, 2, 1, 3)).reshape((batch, x.shape[2], width)) for x in (q, k, v)]
        out = target.function(*folded, kept[key], num_heads=heads, **options)
        out = out[0] if isinstance(out, tuple | list) else out
        if not target.framework.is_array(out) or tuple(out.shape) != (batch, q.shape[2], width):
            return out
        return target.framework.permute(out.reshape((batch, q.shape[2], heads, dim)), (0, 2, 1, 3))

    # Where a row without keys is NaN, the output projection spreads it from one head to all heads of the row.
    separate = target.supports.empty_rows != "nan"
    axes = tuple(axes for axes in target.supports.mask_axes if separate or "H" not in axes)
    facts = dataclasses.replace(target.supports, value_dim=False, zero_sizes=False, mask_axes=axes)
    parameters = tuple(p for p in target.parameters if p in ("attn_mask", "is_causal"))
    return dataclasses.replace(target, function=kernel, contract="attention", supports=facts, parameters=parameters,
                               mixes_heads=True)  # fmt: skip
