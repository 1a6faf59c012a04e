"""What must be drawn is drawn: each fact below holds of a case in 500 on average, read off the arrays of the calls.

That no fact hangs on the one seed of those 500: over five rounds each comes five times at least.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import permissive
import pytest
import torch
from drawing import ROUNDS, asks, cases_of
from facts import FEATURES, MASKS, NUMBERS, SIZES, feature_facts, mask_differs, mask_facts, number_facts, size_facts
from nightly import more_by_night, one_in

from impls import torch_features, torch_manual
from properties.attention.case import Case
from properties.attention.inputs import make_inputs
from properties.catalogue import PROPERTIES
from properties.engine.cases.dtypes import FLOAT_TYPES
from properties.engine.core.attempt import try_case
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search
from properties.multihead.trial import LayerTrial

ATTENTION = permissive.attention_target()
LAYER = permissive.layer_target()
Array = Any


# ---------------------------------------------------------------- facts of one attention call


def facts_of(prop: str, rounds: int = ROUNDS) -> Counter[str]:
    """How often each fact holds, over the cases of a property."""
    found: Counter[str] = Counter()
    for case in cases_of(ATTENTION, prop, rounds):
        x = make_inputs(case)
        found.update({*size_facts(x), *mask_facts(x), *number_facts(x), *feature_facts(x), x.dtype})
        found["cases"] += 1
    return found


UNRESTRICTED = "output_has_the_right_form"  # any case at all, every dtype alike


def test_sizes_masks_and_numbers() -> None:
    """Everything is drawn for a property that restricts nothing, and each of four dtypes in a seventh of its cases."""
    assert not set(PROPERTIES[UNRESTRICTED].domain) - {"dtypes", "features"}
    found = facts_of(UNRESTRICTED, 2)
    assert found["cases"] == 1000
    assert min(found[dtype] for dtype in FLOAT_TYPES) > found["cases"] / 7
    asks([*SIZES, *MASKS, *NUMBERS, *FEATURES], found, hits=2)


@pytest.mark.nightly
def test_no_fact_hangs_on_a_seed() -> None:
    asks([*SIZES, *MASKS, *NUMBERS, *FEATURES], facts_of(UNRESTRICTED), hits=ROUNDS)  # one in 500 on average


def test_the_central_property_leaves_no_number_out() -> None:
    """The property of the bound is about telling cases, the degenerate ones have their own; together they see it all."""
    asks(NUMBERS, facts_of("output_is_inside_the_bound", 2) + facts_of("degenerate_output_is_inside_the_bound", 1))


def test_float64_leads() -> None:
    """A fault of meaning shows in float64 long before it does elsewhere; the other types still have their share."""
    count = Counter(case.dtype for case in cases_of(ATTENTION, "same_call_same_bits", rounds=1))
    assert count["float64"] > count.total() / 3 and min(count[d] for d in FLOAT_TYPES) > count.total() / 20


# ---------------------------------------------------------------- facts of calls, as the target sees them


class Recorder:
    """An exact attention that keeps what it is called with."""

    def __init__(self) -> None:
        self.supports = {"framework": "torch"}
        self.calls: list[tuple[tuple[torch.Tensor, ...], dict[str, Any], torch.Tensor]] = []

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        options: dict[str, Any] = {
            "attn_mask": attn_mask,
            "is_causal": is_causal,
            "scale": scale,
            "enable_gqa": enable_gqa,
        }
        out = permissive.attention(q, k, v, **options)
        self.calls.append(((q, k, v), options, out))
        return out


def layout_facts(name: str, x: torch.Tensor) -> Iterator[str]:
    """How a tensor lies in memory, where that can be told apart."""
    if x.ndim < 2 or x.numel() == 0 or min(x.shape[-2:]) < 2:
        return
    if x.is_contiguous() and x.storage_offset() == 0 and x.untyped_storage().nbytes() == x.nbytes:
        yield f"{name} contiguous"
    if x.is_contiguous() and x.storage_offset() == 1:
        yield f"{name} offset by one element"
    if 0 in x.stride() and x.shape[0] > 1:
        yield f"{name} expanded"
    if x.stride(-1) == 2:
        yield f"{name} every other element"
    if x.stride(-2) == 2 * x.shape[-1] and x.stride(-1) == 1:
        yield f"{name} every other row"
    if x.stride(-2) == 1 < x.stride(-1):
        yield f"{name} feature-major"
    if x.ndim == 4 and x.shape[1] > 1 and x.stride(1) < x.stride(2):
        yield f"{name} transposed"
    if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] + 3 and x.storage_offset() > 1:
        yield f"{name} rows of longer rows"


def run_recorded(prop: str, count: int) -> list[tuple[Case, list[tuple[Any, ...]]]]:
    """The calls that a property makes on each of its cases."""
    recorder = Recorder()
    target = make_target("recorder", recorder)
    seen = []
    for case in cases_of(target, prop, rounds=1, count=count):
        recorder.calls.clear()
        assert try_case(target, PROPERTIES[prop], case) is None, case
        seen.append((case, list(recorder.calls)))
    return seen


@pytest.mark.nightly
def test_layouts() -> None:
    found = Counter[str]()
    for _, calls in run_recorded("memory_layout_changes_nothing", 150):
        facts = set()
        for (q, k, v), options, _ in calls:
            mask = {} if options["attn_mask"] is None else {"mask": options["attn_mask"]}
            facts |= {fact for name, x in {"q": q, "k": k, "v": v, **mask}.items() for fact in layout_facts(name, x)}
            if len({x.stride() for x in (q, k)} | {v.stride()}) == 3 and q.shape == k.shape == v.shape:
                facts.add("q, k and v each in its own layout")
        found.update(facts)
    ways = ("transposed", "rows of longer rows", "every other element", "every other row", "feature-major", "offset by one element")
    asks([f"{name} {way}" for name in "qkv" for way in (*ways, "contiguous")], found)
    asks(["k expanded", "v expanded", "q, k and v each in its own layout", *(f"mask {way}" for way in ways[1:])], found)


def test_layouts_elsewhere() -> None:
    """Other properties see views too, in one call of five at least."""
    views = sum(case.layout != "contiguous" for case in cases_of(ATTENTION, UNRESTRICTED, rounds=1))
    assert views > 100


def test_nan_and_infinities_stand_in_masked_positions() -> None:
    found = Counter[str]()
    for _, calls in run_recorded("masked_nan_is_contained", 500):
        for (_, k, v), options, _ in calls:
            for name, x in (("key", k), ("value", v)):
                found.update(
                    f"{sign} in a hidden {name}"
                    for sign, hit in (("nan", x.isnan()), ("+inf", x == torch.inf), ("-inf", x == -torch.inf))
                    if hit.any()
                )
            if v.isnan().any():
                assert options["attn_mask"] is not None
                found[f"nan under a {options['attn_mask'].dtype} mask".replace("torch.", "")] += 1
                found["nan in one batch element of several"] += v.shape[0] > 1
    asks([f"{sign} in a hidden {name}" for sign in ("nan", "+inf", "-inf") for name in ("key", "value")], found)
    asks(["nan under a bool mask", "nan under a float64 mask", "nan in one batch element of several"], found)


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two calls were given the same arrays' memory and options."""
    return all(a.data_ptr() == b.data_ptr() for a, b in zip(one[0], other[0], strict=True)) and [
        one[1][name] for name in ("is_causal", "scale", "enable_gqa")
    ] == [other[1][name] for name in ("is_causal", "scale", "enable_gqa")]


def test_the_same_call_comes_twice_and_another_between() -> None:
    found = Counter[str]()
    for case, calls in run_recorded("same_call_same_bits", 50):
        assert len(calls) >= 2 and all(same(calls[0], call) for call in calls[1:]), case
    for case, calls in run_recorded("calls_between_change_nothing", 50):
        assert len(calls) >= 3 and same(calls[0], calls[-1]), case
        found["calls of another shape between"] += len({tuple(x.shape for x in call[0]) for call in calls}) > 1
    assert found["calls of another shape between"] > 40


@pytest.mark.parametrize(
    "case", [Case(), Case(batch=2, queries=5, keys=7), Case(keys=4, mask="random"), Case(is_causal=True, queries=3, keys=3)], ids=repr
)
@pytest.mark.parametrize("buffers", [1, 2, 4])
def test_a_buffer_that_is_used_again_shows_whatever_is_called(buffers: int, case: Case) -> None:
    """The last calls of all that have answers of the same shape have other answers: ``buffers`` take turns."""
    rings: dict[Any, list[Any]] = {}

    def again(*arguments: Any, **options: Any) -> Any:
        out = torch_manual.attention(*arguments, **options)
        ring = rings.setdefault((out.shape, out.dtype), [])
        ring.append(out if len(ring) < buffers else ring.pop(0).copy_(out))
        return ring[-1]

    target = make_target("mine", again, torch_manual.attention.supports)
    assert try_case(target, PROPERTIES["calls_between_change_nothing"], case)


@pytest.mark.nightly
def test_edits_put_one_special_value_in_one_place() -> None:
    found = Counter[str]()
    for case in cases_of(ATTENTION, "output_is_inside_the_bound", rounds=1):
        plain = Case(**{**case.differing(), "edits": ()})
        for name in "qkv":
            one, other = getattr(make_inputs(case), name), getattr(make_inputs(plain), name)
            changed = int((one.view(np.uint64) != other.view(np.uint64)).sum()) if one.size else 0
            assert changed <= len(case.edits)
            found[f"an edit of {name}"] += changed > 0
    asks([f"an edit of {name}" for name in "qkv"], found)


# ---------------------------------------------------------------- facts of one layer call


def layer_facts(case: Case) -> Iterator[str]:
    t = LayerTrial(LAYER, case)
    x = t.layer
    batch, queries, width = x.query.shape
    heads, keys = x.num_heads, x.key.shape[1]
    for name, size in (
        ("batch", batch),
        ("heads", heads),
        ("queries", queries),
        ("keys", keys),
        ("dim", width // heads),
    ):
        yield f"{name} = 1" if size == 1 else f"{name} > 1"
    yield "L < S" if queries < keys else "L > S" if queries > keys else "L = S"
    for name, a, b in (
        ("L = H", queries, heads),
        ("B = H", batch, heads),
        ("S = D", keys, width // heads),
        ("L = E", queries, width),
        ("S = E", keys, width),
    ):
        if a == b > 1:
            yield name
    if heads & (heads - 1):
        yield "heads no power of two"
    if (width // heads) & (width // heads - 1):
        yield "dim no power of two"
    yield "with biases" if "b_q" in x.weights else "without biases"
    yield x.dtype
    if x.is_causal:
        yield "causal"
    if max(queries, keys) > 16:
        yield "longer than a tile of 16"
    if x.mask is not None:
        yield f"mask of rank {x.mask.ndim}"
        yield "bool mask" if x.mask.dtype == bool else "mask with -inf" if (x.mask == -np.inf).any() else "finite mask"
        if heads > 1 and "mask that differs along H" in mask_differs(x.mask, (batch, heads, queries, keys)):
            yield "mask per head"
        if batch > 1 and "mask that differs along B" in mask_differs(x.mask, (batch, heads, queries, keys)):
            yield "mask per sequence"
        if not t.visible_to(x).any(axis=-1).all():
            yield "a row without a key"
        if x.is_causal:
            yield "causal with a mask"


LAYERS = [f"{name} {size}" for name in ("batch", "heads", "queries", "keys", "dim") for size in ("= 1", "> 1")]
LAYERS += [
    "L < S",
    "L > S",
    "L = S",
    "L = H",
    "B = H",
    "S = D",
    "L = E",
    "S = E",
    "heads no power of two",
    "dim no power of two",
    "with biases",
    "without biases",
    "causal",
    "causal with a mask",
    "bool mask",
    "mask with -inf",
    "finite mask",
    "mask per head",
    "mask per sequence",
    "a row without a key",
    "longer than a tile of 16",
    *(f"mask of rank {rank}" for rank in range(5)),
    *FLOAT_TYPES,
]


def test_layers() -> None:
    found = Counter[str]()
    for case in cases_of(LAYER, "layer_is_inside_the_bound", rounds=1):
        found.update(set(layer_facts(case)))
    asks(LAYERS, found)


def test_padding() -> None:
    """Sequences of different lengths, full ones, and ones of which a single key is left."""
    found = Counter[str]()
    for case in cases_of(LAYER, "padding_mask_deletes_keys", rounds=1):
        padding = LayerTrial(LAYER, case).padding()
        left = (~padding).sum(axis=1)
        assert left.min(initial=1) >= 1
        found["nothing padded"] += bool((left == case.keys).all())
        found["all but one key padded"] += bool(case.keys > 1 and (left == 1).any())
        found["different lengths"] += len(set(left.tolist())) > 1
        found["a full and a padded sequence"] += bool((left == case.keys).any() and (left < case.keys).any())
    asks(["nothing padded", "all but one key padded", "different lengths", "a full and a padded sequence"], found)


# ---------------------------------------------------------------- what is not supported is not drawn


REFUSALS: dict[str, tuple[dict[str, Any], Callable[[Case], bool]]] = {
    "head_dims": ({"head_dims": [8, 16]}, lambda c: c.dim in (8, 16) and c.width == c.dim),
    "max_length": ({"max_length": 17}, lambda c: max(c.queries, c.keys) <= 17),
    "value_dim": ({"value_dim": False}, lambda c: c.width == c.dim),
    "zero_sizes": ({"zero_sizes": False}, lambda c: 0 not in (c.batch, c.kv_heads, c.queries, c.keys, c.dim, c.width)),
    "mask_and_causal": ({"mask_and_causal": False}, lambda c: not (c.is_causal and c.mask != "none")),
    "mask_kinds": ({"mask_kinds": ["bool"]}, lambda c: c.mask == "none" or c.mask_kind == "bool"),
    "mask_axes": ({"mask_axes": ["LS", "S"]}, lambda c: c.mask == "none" or c.mask_axes in ("LS", "S")),
    "dtypes": ({"dtypes": ["float32"]}, lambda c: c.dtype == "float32"),
    "parameters": ({"parameters": ["is_causal"]}, lambda c: c.mask == "none" and c.scale is None and c.group == 1),
}


@pytest.mark.parametrize("fact", one_in(3, REFUSALS))
def test_what_is_not_supported_is_not_drawn(fact: str) -> None:
    """All cases keep to what is declared: restricted, not filtered, so that none is lost."""
    supports, keeps = REFUSALS[fact]
    seen = cases_of(permissive.attention_target(**supports), UNRESTRICTED, rounds=1, count=150)
    assert len(seen) == 150 and all(map(keeps, seen))
    assert not all(map(keeps, cases_of(ATTENTION, UNRESTRICTED, rounds=1, count=150)))


@pytest.mark.parametrize("kinds", [("bool",), ("minus_infinity", "bias", "bias_and_minus_infinity", "lowest")], ids=["bool", "additive"])
@pytest.mark.parametrize("right", one_in(2, [torch_features.attention, torch_manual.multihead]), ids=["attention", "layer"])
def test_no_property_writes_a_mask_of_a_kind_that_is_not_taken(right: Any, kinds: tuple[str, ...]) -> None:
    """Not only among the drawn ones: some properties make a mask of their own, and say so in ``writes``."""
    given: set[bool] = set()  # whether a mask was a bool one

    @functools.wraps(right)
    def recorded(*tensors: Any, **options: Any) -> Any:
        if options.get("attn_mask") is not None:
            given.add(options["attn_mask"].dtype == torch.bool)
        return right(*tensors, **options)

    target = make_target("recorded", recorded, right.supports | {"mask_kinds": kinds, "dtypes": ["float64"]})
    refused = 0
    for prop in PROPERTIES.values():
        why = inapplicable(target, prop)
        refused += why.startswith("declared as not supported: mask kind")
        given.clear()
        if not why:
            search(target, prop, Plan(examples=more_by_night(1, 4)))
            assert given <= {kinds == ("bool",)}, prop.name
    assert refused


def test_no_property_draws_what_is_not_supported() -> None:
    """A property that restricts a field of the case does so within what is declared."""
    together = [fact for fact in REFUSALS if fact not in ("dtypes", "parameters")]
    target = permissive.attention_target(**{key: value for fact in together for key, value in REFUSALS[fact][0].items()})
    tried = 0
    for prop in PROPERTIES.values():
        if not inapplicable(target, prop):
            seen = cases_of(target, prop.name, rounds=1, count=25)
            assert len(seen) == 25, prop.name
            broken = [fact for fact in together if not all(map(REFUSALS[fact][1], seen))]
            assert not broken, (prop.name, broken)
            tried += 1
    assert tried > 60
