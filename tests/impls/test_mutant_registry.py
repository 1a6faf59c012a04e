"""The mutants are wrong where they say, the honest variants are right everywhere, and the core they share is right."""

from __future__ import annotations

import inspect
import math
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from impls.mutants import forget, load_all
from impls.mutants.attention.core import attention
from impls.mutants.multihead.layer import multihead
from impls.mutants.registry import SIGNATURES
from impls.mutants.witnesses import Witness, witnesses
from properties.catalogue import PROPERTIES

CORES = {"attention": attention, "multihead": multihead}
ALL_MUTANTS, ALL_HONEST = load_all()
# Themes whose mistakes show in calls that no witness makes, or in bits that every allowance covers.
ELSEWHERE = (
    "features",
    "gradients",
    "gradient_routes",
    "honest_gradients",
    "backward_features",
    "honest_features",
    "honest_conventions",
    "last_bits",
    "last_bits_backward",
    "last_bits_layers",
    "layer_gradients",
    "block_gradients",
)


def plain(table: dict[str, Any]) -> dict[str, Any]:
    """What can be told by calls with the core's own parameters; positions, features and gradients have tests of their own."""
    return {name: x for name, x in table.items() if x.contract in CORES and name.partition(".")[0] not in ELSEWHERE}


MUTANTS, HONEST = plain(ALL_MUTANTS), plain(ALL_HONEST)
CALLS = {contract: sorted(witnesses(contract), key=lambda witness: len(witness.name) % 7) for contract in CORES}  # mixed


# --- what can be seen of a call -----------------------------------------------------------------------------------


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in an argument or a result."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [each for part in value.values() for each in tensors(part)]
    if isinstance(value, tuple | list):
        return [each for part in value for each in tensors(part)]
    return []


def bits(value: Any) -> tuple[Any, ...]:
    """A result as comparable data: type, shape and bytes of each tensor, and where one is missing."""
    if value is None:
        return ("none",)
    if isinstance(value, tuple):
        return tuple(bits(part) for part in value)
    if not isinstance(value, Tensor):
        return (repr(value),)
    plain = value.detach().clone(memory_format=torch.contiguous_format)
    plain = torch.where(plain.isnan(), torch.full_like(plain, torch.nan), plain)
    return (
        str(value.dtype),
        tuple(value.shape),
        bytes(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else b"",
    )


def outcome(function: Any, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The answer, or the name of the error."""
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # whatever the call does to it
            return function(*call[0], **call[1])
    except (
        ValueError,
        RuntimeError,
        IndexError,
        AttributeError,
        ZeroDivisionError,
        TypeError,
    ) as error:  # what a mutant raises is part of its behaviour
        return f"raises {type(error).__name__}"


def side_effects(contract: str, function: Any, witness: Witness) -> tuple[Any, ...]:
    """What a single answer does not show: changed inputs, shared memory, a second call, calls before, changed buffers, the process."""
    others = [_twin(witness()), *(NAMED[contract][name]() for name in BETWEEN[contract])]
    forget()
    call = witness()
    before = bits(tuple(tensors(call)))
    first = outcome(function, call)
    seen = bits(first)
    unchanged = before == bits(tuple(tensors(call)))
    places = {each.untyped_storage().data_ptr() for each in tensors(call) if each.numel()}
    aliased = any(each.untyped_storage().data_ptr() in places for each in tensors(first) if each.numel())
    again = seen == bits(outcome(function, witness()))
    for other in others:
        outcome(function, other)
    kept = seen == bits(first)
    forget()
    before_it = []
    for other in others:
        outcome(function, other)
        before_it.append(seen == bits(outcome(function, witness())))
        forget()
    call = witness()
    outcome(function, call)
    call[0][0].add_(1.0)
    reused = bits(outcome(function, call))
    forget()
    fresh = witness()
    fresh[0][0].add_(1.0)
    return unchanged, aliased, again, kept, *before_it, reused == bits(outcome(function, fresh)), *process_kept(function, witness())


def process_kept(function: Any, call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[bool, bool]:
    """Whether gradients are recorded as before, and random numbers depend on the seed set before the call."""
    drawn = []
    with torch.random.fork_rng(), torch.set_grad_enabled(True):
        for seed in (1, 2):
            torch.manual_seed(seed)
            with suppress(Exception):
                function(*call[0], **call[1])
            drawn.append(float(torch.rand(())))
        return torch.is_grad_enabled(), drawn[0] != drawn[1]


def _twin(call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call of the same shapes with other numbers."""
    (first, *others), options = call
    flipped = [x.flip(1) + 1 if isinstance(x, Tensor) else x for x in others]
    mask = options.get("attn_mask")
    return (first * 2, *flipped), options if mask is None else {**options, "attn_mask": mask.flip(-1)}


# --- the core -----------------------------------------------------------------------------------------------------


def straightforward(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """Row by row, key by key, in Python floats."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    shape = (*q.shape[:3], k.shape[2])
    mask = torch.ones(shape, dtype=torch.bool) if attn_mask is None else attn_mask.expand(shape)
    out = torch.zeros((*q.shape[:3], v.shape[3]), dtype=torch.float64)
    for b, h, i in ((b, h, i) for b in range(len(q)) for h in range(heads) for i in range(q.shape[2])):
        logits = {}
        for j in range(k.shape[2]):
            entry = mask[b, h, i, j].item()
            if (entry is False) or entry == -math.inf or (is_causal and j > i):
                continue
            dot = sum(a * c for a, c in zip(q[b, h, i].tolist(), k[b, h // group, j].tolist(), strict=True))
            logits[j] = scale * dot + (0.0 if entry is True else entry)
        if logits:
            most = max(logits.values())
            exps = {j: math.exp(x - most) for j, x in logits.items()}
            for j, e in exps.items():
                out[b, h, i] += e / sum(exps.values()) * v[b, h // group, j].double()
    return out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_core_is_exact_where_every_step_is(dtype: torch.dtype, is_causal: bool) -> None:
    """Weights of 1/n for n a power of two, and integer values: no step rounds."""
    k = torch.zeros(2, 2, 8, 4, dtype=dtype)
    q = torch.randint(-4, 5, (2, 4, 3, 4)).to(dtype)
    v = torch.randint(-8, 9, (2, 2, 8, 3)).to(dtype)
    mask = torch.zeros(3, 8, dtype=torch.bool)
    mask[0, :1], mask[1, :2], mask[2, :4] = True, True, True
    if is_causal:
        mask[2, 2] = False
        mask[2, 3] = False
    out = attention(q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=True)
    assert out.dtype == dtype
    assert torch.equal(out.double(), straightforward(q, k, v, mask, is_causal, 0.5))


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_the_core_agrees_with_python_floats(mask: str) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 4, n, 3, generator=generator, dtype=torch.float64) for n in (5, 6, 6))
    seen = torch.rand(2, 1, 5, 6, generator=generator) > 0.5
    seen[1, :, 3] = False
    masks = {
        "none": None,
        "bool": seen,
        "float": torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -math.inf),
    }
    for is_causal in (False, True):
        out = attention(q, k[:, :2], v[:, :2], attn_mask=masks[mask], is_causal=is_causal, scale=-0.7, enable_gqa=True)
        expected = straightforward(q, k[:, :2], v[:, :2], masks[mask], is_causal, -0.7)
        assert float((out - expected).abs().max()) <= 64 * 2.0**-53 * float(v.abs().max())


def test_the_core_layer_with_identity_projections_is_the_core() -> None:
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(2, n, 6, generator=generator, dtype=torch.float64) for n in (4, 5, 5))
    weights = {f"w_{name}": torch.eye(6, dtype=torch.float64) for name in "qkvo"}
    padding = torch.tensor([[False] * 5, [False, True, False, False, True]])
    out, weight = multihead(query, key, value, weights, num_heads=3, key_padding_mask=padding)
    q, k, v = (x.unflatten(2, (3, 2)).transpose(1, 2) for x in (query, key, value))
    assert torch.equal(out, attention(q, k, v, attn_mask=~padding[:, None, None]).transpose(1, 2).flatten(2))
    assert weight is not None
    assert torch.equal(weight.sum(-1).round(decimals=12), torch.ones(2, 3, 4, dtype=torch.float64))


# --- the register -------------------------------------------------------------------------------------------------


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 150
    assert len(HONEST) >= 25


def test_every_mutant_says_what_it_is() -> None:
    for name, each in ALL_MUTANTS.items():
        assert each.mistake and each.source and each.name == name
        assert each.killed_by in PROPERTIES, f"{name} names an unknown property {each.killed_by}"
    assert len({each.mistake for each in MUTANTS.values() if each.contract == "attention"}) == sum(
        each.contract == "attention" for each in MUTANTS.values()
    )


@pytest.mark.parametrize("table", [ALL_MUTANTS, ALL_HONEST], ids=["mutants", "honest"])
def test_signatures_are_those_of_the_contract(table: dict[str, Any]) -> None:
    for name, each in table.items():
        if each.contract != "module":  # a class has the arguments that its author gave it
            assert inspect.signature(each.function) == SIGNATURES[each.contract], name
        assert vars(each.function)["supports"]["framework"] == "torch"


# --- mutants are wrong, honest variants are not -------------------------------------------------------------------


def allowance(contract: str, call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[Any, Any]:
    """The exact answer in float64, and how far an honest computation in the input's type may be from it.

    With e the unit of the accumulator and u that of the result: a logit is off by at most (D + 8) e · Σ|q||k| scale and a few e of
    itself, a weight by that and (S + 8) e, so the output by 8 (S + D + 8) e · max|v| · max(1, largest logit), and u · |out| when it is
    stored. A layer adds the three projections, whose errors pass through the same bound: the sum of magnitudes goes through W_o.
    """
    options: dict[str, Any]
    (q, k, v, *rest), options = call
    eps = torch.finfo(torch.float64 if q.dtype == torch.float64 else torch.float32).eps
    upcast: dict[str, Any] = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in options.items()}
    exact: list[Any] = [q.double(), k.double(), v.double()]
    out: Any
    if contract == "attention":
        out = attention(*exact, **upcast)
        terms, most = _terms(exact[0], exact[1], exact[2], upcast)
        scale = 8 * (q.shape[3] + k.shape[2] + 8) * eps * terms
    else:
        weights = {name: x.double() for name, x in rest[0].items()}
        upcast["need_weights"] = True
        out = multihead(exact[0], exact[1], exact[2], weights, **upcast)
        sizes = [float(x.abs().max()) if x.numel() else 0.0 for x in exact]
        most = max(1.0, max(sizes)) * (1 + max(float(x.abs().sum(-1).max()) for x in weights.values()))
        scale = torch.tensor(8 * (q.shape[2] * 4 + k.shape[1] + 8) * eps * most**4)
    return out, (scale, torch.finfo(q.dtype).eps / 2, float(torch.finfo(q.dtype).tiny), most)


def _terms(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, float]:
    """max|v| · max(1, largest logit that counts), per row, counting the magnitudes that were summed to it; and max|v|."""
    heads, scale = q.shape[1], options.get("scale")
    if not k.shape[2] or not k.shape[1]:
        return torch.ones((*q.shape[:3], 1), dtype=torch.float64), 1.0
    key = k.repeat_interleave(heads // k.shape[1], 1)
    factor = q.shape[3] ** -0.5 if scale is None else scale
    magnitude = (q.abs() @ key.abs().mT) * abs(factor)
    mask = options.get("attn_mask")
    logit = (q @ key.mT) * factor
    if mask is not None and mask.is_floating_point():
        logit, magnitude = logit + mask, magnitude + mask.masked_fill(mask == -math.inf, 0.0).abs()
    elif mask is not None:
        logit = logit.masked_fill(~mask, -math.inf)
    if options.get("is_causal"):
        logit = logit.masked_fill(~torch.ones(logit.shape[2:], dtype=torch.bool).tril(), -math.inf)
    seen = logit > -math.inf
    largest = logit.amax(-1, keepdim=True)
    near = seen & (logit >= largest - 800 - 1e-3 * largest.abs())  # the others have weight 0 in every type
    counted = magnitude.masked_fill(~near, 0.0).amax(-1, keepdim=True).clamp(min=1.0)
    most = float(v.masked_fill(~v.isfinite(), 0.0).abs().amax()) if v.numel() else 1.0
    return counted * most, most


def is_wrong(answer: Any, exact: Any, allowed: Any, dtype: torch.dtype) -> bool:
    """Whether an answer has the wrong form, or lies outside the allowance."""
    if isinstance(exact, tuple):
        return (
            not isinstance(answer, tuple)
            or is_wrong(answer[0], exact[0], allowed, dtype)
            or (answer[1] is not None and is_wrong(answer[1], exact[1], allowed, dtype))
        )
    if not isinstance(answer, Tensor) or answer.dtype != dtype or answer.shape != exact.shape:
        return True
    scale, unit, tiny, most = allowed
    rounded = exact.to(dtype).double()  # an overflow on storage is right
    near = ((answer.double() - exact).abs() <= scale + unit * exact.abs() + tiny) | (answer.double() == rounded)
    unknowable = (scale >= most) & answer.isfinite()  # rounding may turn any value into any other
    return not bool((near | unknowable | (answer.isnan() & exact.isnan())).all())


@cache
def expected(contract: str, witness: Witness) -> tuple[Any, Any]:
    """The allowance of a witness, computed once."""
    return allowance(contract, witness())


def shows(contract: str, function: Any, witness: Witness) -> bool:
    """Whether the function is visibly wrong on this witness."""
    forget()
    call = witness()
    answer = outcome(function, call)
    if not witness.legal:
        return not isinstance(answer, str)
    if isinstance(answer, str):
        return True
    exact, allowed = expected(contract, witness)
    if contract == "multihead":
        wanted = call[1].get("need_weights", True)
        if (answer[1] is not None) != wanted:
            return True
    return is_wrong(answer, exact, allowed, call[0][0].dtype)


SEQUENCES = {
    "attention": (
        "is_causal=True mask=bool:BHLS",
        "S=1 L=1 Dv=4",
        "edit=nan_value",
        "Dv=4",
        "mask=mixed:BHLS",
        "plain",
        "scale=3.0",
    ),
    "multihead": ("plain", "mask=bool:BHLS"),
}
BETWEEN = {"attention": ("edit=nan_query", "scale=3.0", "is_causal=True"), "multihead": ("is_causal=True",)}
NAMED = {contract: {witness.name: witness for witness in CALLS[contract]} for contract in CORES}


def changes_something(contract: str, function: Any) -> bool:
    """Whether inputs, earlier answers or later calls change."""
    chosen = [NAMED[contract][name] for name in SEQUENCES[contract]]
    honest = (True, False, *[True] * (len(BETWEEN[contract]) + 6))
    return any(side_effects(contract, function, witness) != honest for witness in chosen)


def leans(error: Any, known: float = 0.0) -> bool:
    """Whether errors lie to one side, by more than six standard errors and what is known to lean."""
    return bool(abs(error.mean()) > 6 * error.std() / math.sqrt(error.numel()) + known)


def is_biased(function: Any) -> bool:
    """Whether the outputs for positive values lean to one side, or the weights of odd keys, or small weights."""
    random = torch.Generator().manual_seed(3)

    def error(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q, k, v).double() / attention(q.double(), k.double(), v.double()) - 1

    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (torch.randn(4, 8, n, 4, generator=random, dtype=torch.float64).to(dtype) for n in (32, 20, 20))
        if leans(error(q, k, v.abs() + 0.5)):
            return True
    keys = error(
        torch.randn(4, 8, 64, 16, generator=random), torch.randn(4, 8, 16, 16, generator=random), torch.eye(16).expand(4, 8, 16, 16)
    )
    gap, ones = 32 + 32 * torch.rand(4, 8, 64, 1, generator=random), torch.tensor([[0.0], [1.0]]).expand(4, 8, 2, 1)
    odd, small = keys.mean(2)[..., 1::2] - keys.mean(2)[..., ::2], error(gap, -ones, ones)
    return leans(odd) or leans(small, 64 * 2.0**-26)  # exp2 has log2(e) in float32, off by less than u/4


def test_every_mutant_has_a_witness() -> None:
    hidden = []
    for name, each in MUTANTS.items():
        found = any(shows(each.contract, each.function, witness) for witness in CALLS[each.contract])
        found = found or changes_something(each.contract, each.function)
        if not found and not (each.contract == "attention" and is_biased(each.function)):
            hidden.append(name)
    forget()
    assert not hidden, f"no witness shows what is wrong with {hidden}"


@pytest.mark.nightly
def test_honest_variants_are_right_on_every_witness() -> None:
    wrong = []
    for name, each in HONEST.items():
        for witness in CALLS[each.contract]:
            supports = vars(each.function)["supports"]
            leaky = supports["masked_nan"] == "leaks" and "hidden_" in witness.name
            coarse = supports["arithmetic"]["float16"] != "wide" and "float16" in witness.name  # bfloat16 too
            if not leaky and not coarse and shows(each.contract, each.function, witness):
                wrong.append((name, witness.name))
        if changes_something(each.contract, each.function):
            wrong.append((name, "side effects"))
        if each.contract == "attention" and is_biased(each.function):
            wrong.append((name, "bias"))
    assert not wrong, f"honest variants are flagged: {wrong}"


@pytest.mark.nightly
def test_no_two_mutants_behave_alike() -> None:
    """Each witness in turn splits the groups of mutants that nothing has told apart yet."""
    groups = [[name for name, each in MUTANTS.items() if each.contract == contract] for contract in CORES]
    rounds = {contract: iter(CALLS[contract]) for contract in CORES}
    for _ in range(max(map(len, CALLS.values())) + 1):
        drawn = {contract: next(left, None) for contract, left in rounds.items()}
        groups = [part for group in groups for part in _told_apart(group, drawn) if len(part) > 1]
    forget()
    assert not groups, f"mutants that no witness tells apart: {groups}"


def _told_apart(names: list[str], drawn: dict[str, Witness | None]) -> list[list[str]]:
    """The parts of a group that answer a witness alike; by their side effects when the witnesses have run out."""
    parts: dict[Any, list[str]] = {}
    for name in names:
        torch.manual_seed(0)
        forget()
        each = MUTANTS[name]
        witness = drawn[each.contract]
        seen = _sequence(each.contract, each.function) if witness is None else bits(outcome(each.function, witness()))
        parts.setdefault(seen, []).append(name)
    return list(parts.values())


def _sequence(contract: str, function: Any) -> tuple[Any, ...]:
    """Side effects on the chosen witnesses, as data, and the weights that come back where they can be asked for."""
    effects = [side_effects(contract, function, NAMED[contract][name]) for name in SEQUENCES[contract]]
    calls = [witness() for witness in CALLS[contract] if "need_weights" in vars(function)["supports"].get("parameters", ())]
    return (*effects, *(bits(outcome(function, (given, options | {"need_weights": True}))) for given, options in calls))
