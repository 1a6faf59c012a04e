"""What a property says of its cases shows in every case that is drawn for it, or it is refused where it is declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from drawing import drawn
from exact_modules import MODULE
from hypothesis import strategies as st
from nightly import more_by_night, one_in
from permissive import attention_target, layer_target

from impls.catalogue import CATALOGUE, load, unavailable
from properties.engine.core.contract import Topic, topic_named
from properties.engine.core.declare import Property, declare
from properties.engine.core.target import Target
from properties.engine.doors.explain_case import every_topic
from properties.engine.search.probe import make_target
from properties.engine.search.search import cases, inapplicable
from properties.module.cases import ABOUT

TOPICS = every_topic()
ANY = pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
# Where a field lists nothing but its default value.
OTHERWISE: dict[str, tuple[Any, ...]] = {
    "device": ("cuda",),
    "explicit": (True,),
    "magnitude": (2,),
    "mask_density": (0.8,),
    "program": (("fork",),),
    "edits": ((("v", 0, 1.0),),),
    "value_dim": (3, 5),
}


def declared(topic: Topic, needs: tuple[str, ...] = (), **domain: Any) -> Property:
    """A property that says this of its cases."""

    def check(t: Any) -> None:
        """It holds."""

    return declare("0 = 0", contract=topic.name, needs=needs, **domain)(check)


@cache
def targets(topic: str) -> tuple[Target, ...]:
    """Those that a property about it is put to, each with all that its contract may take."""

    def all_of_them() -> Iterator[Target]:
        if topic in ("attention", "multihead"):
            yield from (attention_target(), layer_target())
        if topic == "module":
            yield MODULE
        for entry in CATALOGUE:
            if (
                entry.contract != "attention"
                and unavailable(entry) is None
                and not (topic == "attention" and entry.contract == "multihead")
            ):
                made = make_target(entry.name, load(entry))
                if topic in (known.name for known in made.kind.topics):
                    yield made

    return tuple(target for target in all_of_them() if topic in (known.name for known in target.kind.topics))


def put(topic: Topic, prop: Property, decides: str = "", count: int = 40) -> Iterator[list[Any]]:
    """The cases of a property, for every target to which it is put, and of which a field decides a call."""
    for target in targets(topic.name):
        view = target.kind.view(target, topic.name)
        if (not decides or decides in view.kind.fields(view)) and not inapplicable(target, prop):
            yield drawn(cases(view, prop), 1, count)


def others(topic: Topic, name: str) -> list[Any]:
    """Values of a field that it may have beside its default one: the first and the last that are listed."""
    known, plain = topic.case.fields()[name], getattr(topic.case(), name)
    listed = [value for value in (*known.varied, *known.drawn, *known.choices, *OTHERWISE.get(name, ())) if value != plain]
    return [listed[0], listed[-1]]


def unmasked(case: Any) -> bool:
    """Whether no mask is given, so that nothing is said of one."""
    return bool(case.mask == getattr(case, "memory_mask", "none") == "none")


# ------------------------------------------------------------ fields

FIELDS = [(topic, name) for topic in TOPICS for name in topic.case.fields()]
# What a topic's cases draw, but never otherwise: buckets are integers, whatever the type.
ALWAYS = {("buckets", "dtype")}


@pytest.mark.parametrize(("topic", "name"), one_in(3, FIELDS), ids=lambda one: getattr(one, "name", one))
def test_a_restricted_field_shows_in_every_case_or_is_refused(topic: Topic, name: str) -> None:
    one, other = others(topic, name)
    if name in ("device", "seed") or name not in (*topic.drawn, "dtype") or (topic.name, name) in ALWAYS:
        with pytest.raises(ValueError, match=f"{name}'? (cannot be restricted|is a field, but not drawn|is never)") as refused:
            declared(topic, **{name: (one,)})
        assert "\n" not in str(refused.value)
        return
    needs = ("attn_mask",) if topic.name in ("attention", "multihead") and name.startswith("mask") else ()
    forms: list[tuple[Any, Any, int]] = [((one,), one, more_by_night(12, 40))]
    if name != "dtype" and not isinstance(other, tuple):
        forms.append((other, other, 5))  # the same, said as a value
    for about, value, count in forms:
        found = next(put(topic, declared(topic, needs, **{name: about}), name, count))
        assert len(found) == count
        assert not [case for case in found if getattr(case, name) != value and not (name.startswith("mask_") and unmasked(case))]


@pytest.mark.nightly(but=3)
@ANY
def test_a_target_that_cannot_follow_a_restriction_is_not_asked(topic: Topic) -> None:
    """Whatever it lacks: a parameter, a field that others of its topic have, or, declared, the length."""
    followed = asked = 0
    for name in topic.drawn:
        value = others(topic, name)[-1]
        if name in ("device", "seed") or "mask" in name or isinstance(value, tuple):
            continue
        prop = declared(topic, **{name: (value,)})
        for target in targets(topic.name):
            view = target.kind.view(target, topic.name)
            if (name == "value_dim" and not view.supports.value_dim) or (name == "keys" and target.contract == "encoder_layer"):
                continue  # widths of values are the target's to say; what is said of keys is said of a memory
            for short in (view, replace(view, supports=replace(view.supports, max_length=8))):
                asked += 1
                if not inapplicable(short, prop):
                    found = drawn(cases(short, prop), 1, more_by_night(2, 4))
                    assert {getattr(case, name) for case in found} == {value}, (name, target.name)
                    followed += 1
    assert followed and (followed < asked or topic.name in ("module", "slopes", "buckets"))


@ANY
def test_a_field_is_never_of_another_type(topic: Topic) -> None:
    for name in topic.case.fields():
        for wrong in ("sometimes", ("sometimes",), [1], ([1],), None if getattr(topic.case(), name) is not None else "None", ()):
            with pytest.raises(ValueError, match=f"property check: ('?{name}'? |no {name} is left)") as refused:
                declared(topic, **{name: wrong})
            assert "\n" not in str(refused.value)


@ANY
def test_a_field_that_is_not_drawn_may_be_said_to_be_what_it_is(topic: Topic) -> None:
    plain = topic.case()
    for name in set(topic.case.fields()) - {*topic.drawn, "dtype", "device", "seed"}:
        if not isinstance(getattr(plain, name), tuple):
            assert declared(topic, **{name: getattr(plain, name)}).domain == {name: getattr(plain, name)}


@ANY
def test_only_attentions_draw_by_a_strategy(topic: Topic) -> None:
    name = next(name for name in topic.drawn if name in ("keys", "queries", "kv_heads", "length"))
    if topic.strategies:
        found = next(put(topic, declared(topic, **{name: st.just(3)}), name, 10))
        assert {getattr(case, name) for case in found} == {3}
    else:
        with pytest.raises(ValueError, match=f"{name} is a value or a table for .*, not a strategy"):
            declared(topic, **{name: st.just(3)})


def test_keys_of_a_layer_are_those_that_a_property_is_about() -> None:
    """Where one array is queries and keys there are as many of both: it is then not drawn."""
    topic = topic_named("multihead")
    for domain in ({"keys": (3,)}, {"keys": (3, 4), "queries": (3, 5)}, {"at_least": {"keys": 4}}):
        keys = {case.keys for case in next(put(topic, declared(topic, **domain)))}
        assert keys <= {3, 4} if "keys" in domain else min(keys) == 4
    assert {"all", "nothing"} <= {case.shared for case in next(put(topic, declared(topic, keys=(3, 4), queries=(3, 4))))}


def test_what_no_target_can_be_asked_is_not_put_to_it() -> None:
    """Position 100,000 is beyond float16, and packs without empty rows have no sequence without keys."""
    topic = topic_named("sinusoidal")
    far = declared(topic, offset=(100_000,), dtype=("float16", "float32"))
    target = next(target for target in targets("sinusoidal") if "float16" in target.dtypes)
    target = replace(target, supports=replace(target.supports, arithmetic={"float16": "same"}))
    assert inapplicable(target, far, ("float16",)) == "it takes no offset = (100000,)"
    assert {case.dtype for case in drawn(cases(target, far), 1, 20)} == {"float32"}
    many = declared(topic_named("packed"), packing=("no_keys",))
    assert {"", "declared as not supported: packing ('no_keys',)"} == {inapplicable(target, many) for target in targets("packed")}


# ------------------------------------------------------------ what is no field


def share(found: list[Any], fits: Callable[[Any], bool]) -> float:
    """Of how many cases something is true."""
    return sum(map(fits, found)) / len(found)


def types(found: list[Any]) -> Counter[str]:
    """How often each type is drawn."""
    return Counter(case.dtype for case in found)


def alike(found: list[Any]) -> bool:
    """Whether every type is drawn as often as the others, as nearly as can be."""
    return max(types(found).values()) < 2 * min(types(found).values())


# A directive, and what must be true of the cases that are drawn with it, and is not of those without it.
SHOWN: dict[str, tuple[Any, Callable[[list[Any]], bool]]] = {
    "zero_sizes": (False, lambda found: not any(case.empty for case in found)),
    "dtypes": ("all", alike),
    "at_least": ({"keys": 4}, lambda found: min(case.keys for case in found) == 4),
    "alike": ((("queries", "batch"),), lambda found: share(found, lambda case: case.batch == case.queries) > 0.5),
    "masked": (5, lambda found: share(found, lambda case: case.mask != "none") > 0.75),
    "features": (("softcap",), lambda found: any(case.softcap for case in found)),
    "models": (5, lambda found: any(case.kv_heads == 12 and case.queries == case.keys == 128 for case in found)),
    "programs": (True, lambda found: all(case.program for case in found)),
    "widens": (True, lambda found: {case.mask_axes for case in found if case.mask != "none"} == {"S"}),
}
# A directive that excludes whole targets: what is said, and of what target.
EXCLUDED: dict[str, tuple[Any, dict[str, Any]]] = {
    "arithmetic": (lambda arithmetic: False, {}),
    "writes": (("bool",), {"mask_kinds": ["minus_infinity"]}),
    "along": ("L", {"mask_axes": ["S"]}),
    "moves": (True, {"window": [3, 0]}),
    "fewer_heads": (True, {"default_scale": "1/sqrt(width)"}),
}
DIRECTIVES = [(topic, name) for topic in TOPICS for name in topic.directives]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(("topic", "name"), one_in(3, DIRECTIVES), ids=lambda one: getattr(one, "name", one))
def test_a_directive_shows(topic: Topic, name: str) -> None:
    make = attention_target if topic.name == "attention" else layer_target
    if name == "about":
        return  # below
    if name in EXCLUDED:
        about, supports = EXCLUDED[name]
        target = make(**supports)
        assert inapplicable(target, declared(topic, **{name: about})) and not inapplicable(target, declared(topic))
        return
    about, fits = SHOWN[name]
    said, unsaid = declared(topic, **{name: about}), declared(topic)
    if name == "widens":
        target = make(mask_axes=["LS", "S"])
        with_it, without = (drawn(cases(target, prop), 1, 100) for prop in (said, unsaid))
    else:
        with_it, without = (next(put(topic, prop, count=200)) for prop in (said, unsaid))
    assert fits(with_it)
    assert not fits(without) or (name == "dtypes" and len(types(without)) == 1)


def test_directives_of_types() -> None:
    halves = next(put(topic_named("attention"), declared(topic_named("attention"), dtypes="overflowing"), count=200))
    assert types(halves).most_common(1)[0][0] == "float16"
    few = declared(topic_named("module"), dtypes=("float32", "bfloat16"))
    assert set(types(next(put(topic_named("module"), few, count=100)))) == {"float32", "bfloat16"}


def test_every_word_about_modules_means_something() -> None:
    said = {word: inapplicable(MODULE, declared(topic_named("module"), about=(word,))) for word in ABOUT}
    assert said["memory"] == said["structure"] == "" and said["cache"].startswith("it keeps no cache")


@pytest.mark.parametrize(
    ("topic", "domain", "said"),
    [
        ("attention", {"at_least": {"kees": 2}}, "at_least names 'kees', which is no size that is drawn; it can name queries, keys, "),
        ("attention", {"at_least": {"mask": 2}}, "at_least names 'mask'"),
        ("attention", {"at_least": {"keys": 10_000}}, "at_least of keys is 10000; it can be a whole number from 0 to 600"),
        ("attention", {"at_least": "keys"}, "at_least is 'keys'; it can be a table"),
        ("attention", {"alike": (("keys", "quries"),)}, "alike names 'quries', which is no size"),
        ("attention", {"alike": ("keys", "queries")}, "alike is .*; it can be pairs of sizes"),
        ("attention", {"dtypes": "alll"}, "dtypes is 'alll'; it can be 'all' or 'overflowing'"),
        ("attention", {"dtypes": ("float32",)}, r"dtypes is \('float32',\); it can be 'all' or 'overflowing'"),
        ("packed", {"dtypes": "overflowing"}, "dtypes is 'overflowing'; it can be 'all'"),
        ("encoder_layer", {"dtypes": ("float32",)}, "dtypes is .*; it can be 'all'"),
        ("module", {"dtypes": ("flot32",)}, "dtypes holds 'flot32'; it can hold 'float64', "),
        ("module", {"about": ("causl",)}, "about holds 'causl'; it can hold 'causal', "),
        ("module", {"about": "causal"}, "about is 'causal'; it can be a table"),
        ("attention", {"features": ("windw_size",)}, "features holds 'windw_size'; it can hold 'window_size', "),
        ("attention", {"writes": ("boool",)}, "writes holds 'boool'; it can hold 'bool', "),
        ("attention", {"along": "Q"}, "along is 'Q'; it can be 'LS' or "),
        ("attention", {"masked": 0}, "masked is 0; it can be a whole number from 1 on"),
        ("attention", {"zero_sizes": "no"}, "zero_sizes is 'no'"),
        ("attention", {"moves": False}, "moves is False; it can be True, or left out"),
        ("attention", {"arithmetic": "same"}, "arithmetic is 'same'; it can be a function"),
        ("attention", {"needs": ("attn_maks",)}, "nothing has 'attn_maks' of attention; there are "),
        ("attention", {"needs": "attn_mask"}, r"needs is a table, as in \('attn_mask',\)"),
        ("packed", {"needs": ("attn_mask",)}, "nothing has 'attn_mask' of packed sequences"),
        ("attention", {"is_causal": "yes"}, "is_causal is never 'yes'"),
        ("attention", {"keys": ("3",)}, "keys is never '3'"),
        ("attention", {"edits": (("v", 0, 1.0),)}, "edits is never "),
        ("attention", {"edits": ((0,),)}, "edits is never "),
        ("attention", {"dtype": ("flaot32",)}, "dtype is never 'flaot32'"),
        ("attention", {"dtype": "float32"}, r"dtype is a table, as in \('float32',\)"),
        ("attention", {"mask": ("left_paddding",)}, "mask is never 'left_paddding'"),
        ("attention", {"batch": (-3,)}, "batch is never -3"),
        ("attention", {"batch": ()}, "no batch is left"),
        ("cached", {"program": ("frok",)}, "'program' is a field, but not drawn for caches"),
        ("cached", {"program": ((), ("fork",))}, "'program' is a field, but not drawn for caches"),
        ("cached", {"programs": "fork"}, "programs is 'fork'; it can be True"),
        ("cached", {"chunks": (2, 1)}, "chunks is never 2"),
        ("encoder_layer", {"keys": (3,)}, "'keys' is a field, but not drawn for encoder layers"),
        ("encoder_layer", {"memory_mask": "random"}, "'memory_mask' is a field, but not drawn"),
        ("encoder_layer", {"memory_padding": True}, "'memory_padding' is a field, but not drawn"),
        ("multihead", {"group": (2,)}, "'group' is a field, but not drawn for layers"),
        ("multihead", {"features": ("softcap",)}, "'features' is neither a field of its cases nor a directive for layers"),
        ("sinusoidal", {"seed": (5,)}, "seed cannot be restricted: every case has a seed of its own"),
        ("linear", {"device": ("cuda",)}, "device cannot be restricted: a device is chosen for a run"),
    ],
)
def test_what_a_property_cannot_say_is_refused_in_one_sentence(topic: str, domain: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^property check: {said}") as refused:
        declared(topic_named(topic), **domain)
    assert "\n" not in str(refused.value)
