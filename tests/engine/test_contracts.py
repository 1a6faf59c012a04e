"""A contract of a third party: what it must have, and how it is picked up."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from properties import catalogue
from properties.engine.core import contract as contracting
from properties.engine.core.contract import (
    Contract,
    Formal,
    Topic,
    contract_named,
    contracts,
    make,
    recognised,
    register,
    topic_named,
)
from properties.pack import packed
from properties.pack.cases import Case


class Doubled(Contract):
    """x in, 2 · x out."""

    name, call, arguments = "doubled", "doubled(twice)", 1
    topics = (Topic("doubled", "what doubles", Case, ("keys",)),)

    def recognise(self, formal: Formal) -> bool:
        return list(formal) == ["twice"]

    def options(self, formal: Formal) -> tuple[str, ...]:
        return ()

    def smoke(self, target: Any, dtype: str, device: str) -> str:
        return ""

    def trial(self, prop: Any) -> Any:
        raise NotImplementedError

    def cases(self, target: Any, prop: Any, device: str, dtypes: Any) -> Any:
        raise NotImplementedError


class Unfinished(Contract):
    """It lacks nearly everything."""

    name, call, arguments = "unfinished", "unfinished(x)", 1

    def recognise(self, formal: Formal) -> bool:
        return False

    def options(self, formal: Formal) -> tuple[str, ...]:
        return ()

    def smoke(self, target: Any, dtype: str, device: str) -> str:
        return ""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten."""
    monkeypatch.setattr(contracting, "_KNOWN", dict(contracting._KNOWN))
    monkeypatch.setattr(contracting, "_TOPICS", dict(contracting._TOPICS))
    yield


def test_what_is_lacking_is_named_in_one_sentence() -> None:
    with pytest.raises(TypeError) as lacking:
        make(Unfinished)
    said = str(lacking.value)
    assert said.startswith("the contract Unfinished lacks cases, trial, topics; ") and "\n" not in said


def test_one_that_has_everything_is_made() -> None:
    assert make(Doubled).name == "doubled"


def test_two_of_one_name() -> None:
    register(make(Doubled))

    class Twice(Doubled):
        """Another of that name."""

    with pytest.raises(ValueError) as twice:
        register(Twice())
    assert str(twice.value) == "two contracts are called 'doubled': Doubled and Twice"
    assert type(contract_named("doubled")) is Doubled


def test_the_same_one_may_be_registered_again() -> None:
    register(*contracts().values())


def test_an_installed_chapter_is_picked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = SimpleNamespace(CONTRACTS=(Doubled,), THEMES=(packed,))
    asked: list[str] = []

    def entry_points(group: str) -> list[Any]:
        asked.append(group)
        return [SimpleNamespace(load=lambda: chapter, name="mine", value="mine:chapter")]

    monkeypatch.setattr(catalogue.metadata, "entry_points", entry_points)
    assert catalogue._of_third_parties() == (packed,)
    assert asked == ["attncheck.chapters"]
    assert topic_named("doubled").subject == "what doubles"

    def twice(twice: Any) -> Any:
        return 2 * twice

    assert recognised(inspect.signature(twice).parameters).name == "doubled"


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(ValueError, match="there is no contract 'doubled'; there are attention, "):
        contract_named("doubled")


def test_what_a_contract_leaves_unsaid() -> None:
    made = make(Doubled)
    flags = (made.probed, made.makes, made.fallback, made.batched, made.readings, made.repeats)
    assert flags == (False, False, False, False, True, False)
    rest: Any = None
    assert made.legal(rest, Case()) and made.hint(Case()) == ""
    assert made.edge(SimpleNamespace(edge="NaN"), Case(), rest, rest) == "NaN"  # type: ignore[arg-type]


def test_a_property_may_restrict_what_is_drawn() -> None:
    topic = Topic("doubled", "what doubles", Case, ("dim",), contracting.EVERY_TYPE)
    topic.check("mine", {"dim": 3, "dtypes": "all"})
    topic.check("mine", {"dtype": ("float64",)})
    with pytest.raises(ValueError, match=r"property mine: dtype is a table, as in \('float64',\)"):
        topic.check("mine", {"dtype": "float64"})
    other = next(name for name in Case().fields() if name not in ("dim", *contracting.EVERY_CASE))
    for name, why in (("kees", "is neither a field of its cases"), (other, "is a field, but not drawn")):
        with pytest.raises(ValueError) as wrong:
            topic.check("mine", {name: None})
        assert str(wrong.value).startswith(f"property mine: {name!r} {why}") and "for what doubles; there are" in str(wrong.value)


@pytest.mark.parametrize(
    ("chapter", "said"),
    [
        (SimpleNamespace(THEMES=()), "cannot be used: it has no CONTRACTS"),
        (SimpleNamespace(CONTRACTS=(type("Half", (Contract,), {}),), THEMES=()), "cannot be used: the contract Half lacks"),
    ],
)
def test_a_chapter_that_cannot_be_used_is_named_in_one_line(
    chapter: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is no finding: the exit status is that of what cannot be run."""
    point = SimpleNamespace(load=lambda: chapter, name="mine", value="mine:chapter")
    monkeypatch.setattr(catalogue.metadata, "entry_points", lambda group: [point])
    with pytest.raises(SystemExit) as left:
        catalogue._of_third_parties()
    told = capsys.readouterr().err
    assert left.value.code == 2 and said in told and told.count("\n") == 1 and "'mine'" in told
