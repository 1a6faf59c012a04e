"""A contract of a third party: what it must have, and how it is picked up."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from properties import catalogue
from properties.engine.cases.field import field
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
from properties.engine.core.declare import Property
from properties.engine.core.trial import Trial
from properties.engine.doors import cli, new
from properties.engine.search.probe import make_target
from properties.pack import packed
from properties.pack.cases import Case

ROOT = Path(__file__).resolve().parents[2]


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
    chapter = SimpleNamespace(CONTRACTS=(Doubled,), THEMES=(packed,), __package__=None)
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


@dataclass(frozen=True)
class Bare(Case):
    """A case with a field of which nobody knows why it is there."""

    m: int = 3


@dataclass(frozen=True)
class Odd(Case):
    """A case with a field whose values no text of a case can have."""

    m: list = field(None, why="no reason")  # noqa: RUF009  as every case is declared


def changed(**attributes: Any) -> type[Contract]:
    """A class of contracts that says something else than ``Doubled``."""
    return type("Mine", (Doubled,), {"name": "mine", **attributes})


def own_theme(**members: Any) -> ModuleType:
    """A module with these properties."""
    vars(theme := ModuleType("theme")).update(members)
    return theme


def about(topic: str, check: Any = None) -> Property:
    """A property of a topic, called as one of the built-in ones is, or otherwise."""

    def rows_sum_to_one(t: Any) -> None:
        """Something."""

    return Property((check or rows_sum_to_one).__name__, "theme", "", "", check or rows_sum_to_one, topic, (), True, False, "", {})


def doubles(t: Any) -> None:
    """Something else."""


UNUSABLE = "the contract Mine cannot be used: "


@pytest.mark.parametrize(
    ("chapter", "said"),
    [
        ({"THEMES": ()}, "it has no CONTRACTS"),
        ({"CONTRACTS": ()}, "it has no THEMES"),
        ({"CONTRACTS": (type("Half", (Contract,), {}),)}, "the contract Half lacks"),
        ({"CONTRACTS": 3}, "CONTRACTS is 3, and not a list"),
        ({"THEMES": "mine"}, "THEMES is 'mine', and not a list"),
        ({"CONTRACTS": (3,)}, "3 is no class of properties.engine.core.contract.Contract"),
        ({"CONTRACTS": (changed(name=3),)}, UNUSABLE + "its name is 3, not a text"),
        ({"CONTRACTS": (changed(topics=(Topic("mine", "mine", Case, ("keys",)), 3)),)}, UNUSABLE + "its topics are (Topic("),
        ({"CONTRACTS": (changed(topics=()),)}, UNUSABLE + "its topics are (), not a tuple of one Topic or more"),
        ({"CONTRACTS": (changed(smoke=lambda self, target: ""),)}, UNUSABLE + "its smoke takes (target), not (target, dtype, device)"),
        (
            {"CONTRACTS": (changed(topics=(Topic("mine", "mine", Bare, ()),)),)},
            f"{__name__}.Bare.m is no field of a case: ",
        ),
        ({"CONTRACTS": (changed(topics=(Topic("mine", "mine", Case, ("kees",)),)),)}, UNUSABLE + "the cases of 'mine' have no kees"),
        (
            {"CONTRACTS": (changed(topics=(Topic("mine", "mine", "Case", ("keys",)),)),)},
            "the case of its topic 'mine' is 'Case', no class of Case",
        ),
        (
            {"CONTRACTS": (changed(topics=(Topic("mine", "mine", Case(), ("keys",)),)),)},
            "the case of its topic 'mine' is Case(), no class of",
        ),
        ({"CONTRACTS": (changed(topics=(Topic("mine", "mine", Case, None),)),)}, "the drawn of its topic 'mine' is None, not a tuple"),
        ({"CONTRACTS": (changed(topics=(Topic("mine", "mine", Case, "n"),)),)}, "the drawn of its topic 'mine' is 'n', not a tuple"),
        ({"CONTRACTS": (changed(topics=(Topic(3, "mine", Case, ("n",)),)),)}, "the name of its topic 3 is 3, not a text"),
        ({"CONTRACTS": (changed(topics=(Topic("mine", None, Case, ("n",)),)),)}, "the subject of its topic 'mine' is None, not a text"),
        (
            {"CONTRACTS": (changed(topics=(Topic("mine", "mine", Case, (), ("a",)),)),)},
            "the directives of its topic 'mine' is ('a',), not a mapping",
        ),
        ({"CONTRACTS": (changed(topics=(Topic("mine", "mine", Odd, ()),)),)}, "the field 'm' of a case is list; it can be int, "),
        ({"CONTRACTS": (changed(known="foo"),)}, UNUSABLE + "its known is 'foo', not a tuple of texts"),
        ({"CONTRACTS": (changed(dtypes="float64"),)}, UNUSABLE + "its dtypes is 'float64', not a tuple of texts"),
        ({"CONTRACTS": (changed(capabilities=None),)}, UNUSABLE + "its capabilities is None, not a tuple of texts"),
        ({"THEMES": ("a",)}, "No module named 'a'"),
        ({"THEMES": (3,)}, "THEMES holds modules or names of modules, not 3"),
        (
            {"THEMES": (own_theme(mine=about("attention")),)},
            "two properties are called 'rows_sum_to_one': in properties.attention.softmax and",
        ),
        (
            {"THEMES": (own_theme(one=about("attention", doubles)), own_theme(two=about("packed", doubles)))},
            "two properties are called 'doubles'",
        ),
        (
            {"CONTRACTS": (changed(trial=lambda self, prop: 3),), "THEMES": (own_theme(mine=about("doubled", doubles)),)},
            UNUSABLE + "its trial returns 3, no class of Trial",
        ),
    ],
)
def test_a_chapter_that_cannot_be_used_is_named_in_one_line(
    chapter: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is no finding: the exit status is that of what cannot be run."""
    without = {"CONTRACTS", "THEMES"} - {said.split()[-1]}
    whole = dict.fromkeys(without, ()) | {"__package__": None} | chapter
    point = SimpleNamespace(load=lambda: SimpleNamespace(**whole), name="mine", value="mine:chapter")
    monkeypatch.setattr(catalogue.metadata, "entry_points", lambda group: [point])
    with pytest.raises(SystemExit) as left:
        catalogue._of_third_parties()
    told = capsys.readouterr().err
    assert left.value.code == 2 and f"cannot be used: {said}" in told and told.count("\n") == 1 and "'mine'" in told


def test_what_is_right_of_a_chapter_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances as well as classes, modules as well as their names, and a class that has registered itself."""
    register(Doubled())
    theme = own_theme(mine=about("doubled", doubles))
    chapter = SimpleNamespace(
        CONTRACTS=(Doubled, changed(name="mine", trial=lambda self, prop: Trial)()),
        THEMES=(theme, "properties.pack.packed", ".packed"),
        __package__="properties.pack",
    )
    monkeypatch.setattr(Doubled, "trial", lambda self, prop: Trial)
    point = SimpleNamespace(load=lambda: chapter, name="mine", value="mine:chapter")
    monkeypatch.setattr(catalogue.metadata, "entry_points", lambda group: [point])
    assert catalogue._of_third_parties() == (theme, packed, packed)
    assert contract_named("mine").name == "mine" and contract_named("doubled").name == "doubled"


# ------------------------------------------------------------ the skeleton, as somebody else's package


@pytest.mark.slow
def test_the_skeleton_of_a_contract_becomes_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/how-to/extend.md says: other imports, a module ``chapter``, an entry point. Nothing else of it is touched."""
    for name in ("properties/catalogue.py", "impls/mutants/registry.py"):
        (tmp_path / "clone" / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / "clone" / name)
    monkeypatch.chdir(tmp_path / "clone")
    assert new.main(["contract", "gated_unit"]) == 0
    site = tmp_path / "site"
    mine = Path(shutil.move(tmp_path / "clone" / "properties" / "gated_unit", site / "mypackage"))
    for file in mine.glob("*.py"):
        file.write_text(file.read_text(encoding="utf-8").replace("from ..", "from attncheck.properties."), encoding="utf-8")
    page = (ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")
    (chapter,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (points,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (mine / "chapter.py").write_text(chapter, encoding="utf-8")
    info = site / "mypackage-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        points.replace('project.entry-points."attncheck.chapters"', "attncheck.chapters").replace('"', "")
    )
    (site / "attncheck").mkdir()
    (site / "attncheck" / "properties").symlink_to(ROOT / "properties")
    (site / "units.py").write_text(
        "def right(x):\n    return x\n\n\ndef wrong(x):\n    return x + 1\n\n\n"
        'right.supports = wrong.supports = {"contract": "gated_unit", "framework": "numpy"}\n'
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    environment |= {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    for target, status, said in (("right", 0, "1 property holds"), ("wrong", 1, "REFUTED  gated_unit_is_inside_the_bound")):
        command = [sys.executable, "-m", "attncheck.properties", f"units.py:{target}", "--property", "gated_units", "--cases", "5"]
        done = subprocess.run(command, cwd=site, env=environment, capture_output=True, encoding="utf-8", timeout=300)
        assert done.returncode == status and said in done.stdout, done.stdout + done.stderr


def test_what_lies_at_an_edge_is_no_part_of_a_verdict() -> None:
    """A property that needs nothing is expected of every target, one at an edge of none."""
    plain = next(prop for prop in catalogue.PROPERTIES.values() if prop.contract == "attention" and not prop.needs and not prop.edge)
    edge = next(prop for prop in catalogue.PROPERTIES.values() if prop.contract == "attention" and not prop.needs and prop.edge)
    target = make_target("mine", lambda q, k, v: v, {"framework": "numpy"})
    assert target.kind.expected(target, plain) and not target.kind.expected(target, edge)


def test_a_mistake_of_an_installed_chapter_is_not_said_to_be_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(catalogue.CHAPTERS, "theirs", "gated")
    theirs: dict[str, Any] = {"__name__": "theirs.checks"}
    exec("def recognise(self, formal):\n    return formal['gate'].default\n", theirs)
    calls = ["numpy_matmul.attention", "--property", "rows_sum_to_one", "--cases", "1"]
    monkeypatch.setattr("properties.engine.doors.cli.run", theirs["recognise"].__get__({}))
    assert cli.main(calls) == 2
    assert "this is a mistake of the installed chapter 'gated', not of attncheck" in capsys.readouterr().err
    monkeypatch.setattr("properties.engine.doors.cli.run", {}.__getitem__)
    assert cli.main(calls) == 2
    assert "this is a mistake of attncheck, not of the target" in capsys.readouterr().err
