"""Every field of a case has a reason, every value that looks arbitrary is drawn, and ``explain`` tells both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from drawing import drawn
from exact_modules import MODULE
from permissive import attention_target, layer_target

from impls.catalogue import CATALOGUE, load, unavailable
from properties.catalogue import PROPERTIES
from properties.engine.cases import draws
from properties.engine.cases.field import field
from properties.engine.core.contract import Topic, topic_named
from properties.engine.core.declare import declare
from properties.engine.core.target import Target
from properties.engine.doors.cli import main
from properties.engine.doors.explain_case import every_topic, fields_text, read
from properties.engine.search.probe import make_target
from properties.engine.search.search import cases, inapplicable

TOPICS = every_topic()
ANY = pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
EVERY_DIRECTIVE = {name for topic in TOPICS for name in topic.directives}


# ------------------------------------------------------------ reasons


@ANY
def test_every_field_has_a_reason(topic: Topic) -> None:
    for name, known in topic.case.fields().items():
        assert len(known.why) > 5, name
        for value, why in known.unusual.items():
            for each in value if isinstance(value, tuple) and value != (0,) else (value,):
                assert why and why in known.reason(each), (name, each)


@pytest.fixture(scope="module")
def tables() -> dict[tuple[type, str], set[Any]]:
    """What is drawn for each field of each kind of case, by any property and any target that there is."""
    found: dict[tuple[type, str], set[Any]] = defaultdict(set)
    original, others = draws._record, []

    def recorded(kind: Any, fields: Any) -> Any:
        for name, strategy, table in fields:
            if isinstance(table, range):  # seeds
                continue
            if table is not None:
                found[kind, name].update(table)
            elif (kind, name, repr(strategy)) not in others:
                others.append((kind, name, repr(strategy)))
                found[kind, name].update(drawn(strategy, 0, 60))
        return original(kind, fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_record", recorded)
        for target in targets():
            for prop in PROPERTIES.values():
                if not inapplicable(target, prop):
                    cases(target.kind.view(target, prop.contract), prop)
    return found


def targets() -> Iterator[Target]:
    """The widest of attention, of its layer and of its gradients, and all built-ins of the other contracts."""
    yield attention_target()
    yield layer_target()
    yield MODULE
    for entry in CATALOGUE:
        wide = entry.contract not in ("attention", "multihead") or entry.name == "torch_features.attention"
        if wide and unavailable(entry) is None:
            yield make_target(entry.name, load(entry))


@ANY
def test_every_unusual_value_is_drawn(topic: Topic, tables: dict[tuple[type, str], set[Any]]) -> None:
    for name, known in topic.case.fields().items():
        table = set().union(*(tables[kind, name] for kind in topic.case.__mro__))  # a layer's cases have the fields of an attention
        drawn_here = table | {part for many in table if isinstance(many, tuple) for part in many}
        for value in known.unusual:
            if name == "dtype":
                continue  # whichever the target takes
            for each in value if isinstance(value, tuple) else (value,):
                assert each in drawn_here, (name, each)


@ANY
def test_every_odd_looking_size_has_a_reason(topic: Topic, tables: dict[tuple[type, str], set[Any]]) -> None:
    """A size beyond eight that is no power of two looks arbitrary: a table says why it is there."""
    for name, known in topic.case.fields().items():
        table = set().union(*(tables[kind, name] for kind in topic.case.__mro__))
        sizes = {n for n in table if type(n) is int and n > 8 and n & (n - 1)}
        assert not {n for n in sizes if known.reason(n) == known.why}, name


def test_a_field_without_a_reason_is_none() -> None:
    with pytest.raises(ValueError, match="why"):
        field(1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"a field of a case has a reason: field\(default, why=…\)"):
        field(1, why="")


# ------------------------------------------------------------ what a property says of its cases


@ANY
def test_a_misspelt_field_of_a_domain_is_refused(topic: Topic) -> None:
    def check(t: Any) -> None:
        """It holds."""

    with pytest.raises(ValueError, match="property check: 'kees' is neither a field of its cases nor a directive") as refused:
        declare("0 = 0", contract=topic.name, kees=(3,))(check)
    assert "\n" not in str(refused.value) and topic.drawn[0] in str(refused.value)


@pytest.mark.parametrize(("topic", "directive"), [(t.name, d) for t in TOPICS for d in sorted(EVERY_DIRECTIVE - set(t.directives))])
def test_a_directive_that_is_not_followed_is_refused(topic: str, directive: str) -> None:
    def check(t: Any) -> None:
        """It holds."""

    with pytest.raises(ValueError, match=f"property check: '{directive}'"):
        declare("0 = 0", contract=topic, **{directive: True})(check)


def test_packs_follow_fewer_directives_than_attentions() -> None:
    assert {"alike", "at_least"} <= EVERY_DIRECTIVE - set(topic_named("packed").directives)


# ------------------------------------------------------------ the door


def explained(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["explain", *arguments]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def test_a_case_is_explained_field_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    said = explained(capsys, "Case(keys=17, scale=0.0)")
    assert said.startswith("Case(keys=17, scale=0.0), a case of attention\n  keys=17    the length of the softmax")
    said = " ".join(said.split())
    assert "a tile ends here" in said and "`scale or default` takes 0 for none" in said
    assert "queries" not in said
    assert "queries=1" in explained(capsys, "Case(keys=17)", "-v")


def test_the_simplest_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert "every field has its default value" in explained(capsys, "Case()")


def test_the_contract_that_can_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a case of packed sequences" in explained(capsys, "Case(packing='ones')")
    assert "a case of caches" in explained(capsys, "Case(keys=3)", "--contract", "cached")
    assert read("Case(keys=3)", TOPICS)[0].name == "attention"


@ANY
def test_all_fields_of_a_contract(topic: Topic, capsys: pytest.CaptureFixture[str]) -> None:
    said = explained(capsys, "--contract", topic.name)
    assert said == fields_text(topic) + "\n" and all(f"  {name}=" in said for name in topic.case.fields())
    assert max(map(len, said.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Case(kees=3)",), "a case has no field 'kees'; its fields are "),
        (("Case(page_size=3, keys=5, foo=1)",), "a case has no field 'foo'; its fields are base, batch, chunks, "),
        (("Case(page_size=-3, keys=5)",), "the field 'page_size' of a case is at least 1, got -3"),
        (("keys=3",), "not a case: 'keys=3'"),
        (("Case(keys=3)", "--contract", "atention"), "there is no topic 'atention'; there are attention, "),
        (("Case(packing='one')", "--contract", "packed"), "did you mean 'ones'?"),
    ],
)
def test_errors_are_one_sentence(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = explained(capsys, *arguments, status=2)
    assert said.startswith("attncheck: ") and says in said and said.count("\n") == 1
