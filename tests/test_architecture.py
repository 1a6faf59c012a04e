"""The rule of imports: who may know whom, late imports included, read off the syntax tree."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import properties.catalogue  # makes the contracts known  # noqa: F401
from properties.engine.core.contract import contracts

ROOT = Path(__file__).parents[1] / "properties"
ENGINE = ("cases", "frameworks", "contained", "core", "search", "explain", "report", "doors")
CONTRACTS = tuple(sorted(path.parent.name for path in ROOT.glob("*/contract.py")))
# From the ground up: a room may know what stands below it. Contracts stand beside each other, on core; search, explain and report know
# none of them. Doors and what stands at the top of the package see everything.
FLOORS = {
    "exact": 0,
    "cases": 1,
    "frameworks": 2,
    "contained": 3,
    "core": 4,
    **dict.fromkeys(CONTRACTS, 5),
    "search": 6,
    "explain": 7,
    "report": 8,
}
NEIGHBOURS = {("multihead", "attention"), ("cache", "position")}  # contracts that may know another
SEE_ALL = ("doors", "top")
WORDS = {"slopes"}  # a contract's name that is also what others call a parameter


def room(parts: tuple[str, ...]) -> str:
    """Where a module stands, from its path below the package. Raises ValueError for a room of the engine that has no floor."""
    if parts and parts[0] == "engine":
        if len(parts) > 1 and parts[1] not in (*ENGINE, "__init__.py"):
            raise ValueError(f"engine/{parts[1]} has no floor: FLOORS says who may know it")
        return parts[1] if len(parts) > 1 and parts[1] in ENGINE else "top"
    return parts[0] if parts and (parts[0] in CONTRACTS or parts[0] == "exact") else "top"


def imports(path: Path, executed: bool = False) -> list[tuple[str, ...]]:
    """What a file imports, anywhere in it, as absolute names; or only what is executed, not what a type checker alone reads."""
    package = ("properties", *path.relative_to(ROOT).parts[:-1])
    found: list[tuple[str, ...]] = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if executed:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            found += [(*module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__"):
            told = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
            found += [tuple(str(told).split("."))] if told else []
    return [name[1:] if name[0] == "attncheck" else name for name in found]


def others(path: Path) -> set[str]:
    """The libraries that a file imports: neither ours nor Python's own."""
    return {name[0] for name in imports(path)} - {"", "properties", "impls", *sys.stdlib_module_names}


def broken(path: Path) -> list[str]:
    """What a file imports that its room may not know."""
    here = room(path.relative_to(ROOT).parts)
    said = [f"{here} knows {'.'.join(name)}" for name in imports(path) if name[0] == "properties" and not allowed(here, room(name[1:]))]
    said += [f"{here} knows impls" for name in imports(path) if name[0] == "impls"]
    home = path.stem.partition("_")[0] if path.parent == ROOT / "engine" / "frameworks" else ""
    frameworks = [name for name in ("torch", "jax", "mlx") if name in others(path) and name != home]
    said += [f"{name} is imported outside its framework" for name in frameworks]
    if here == "exact":
        said += [f"the mathematics knows {name}" for name in others(path) - {"numpy"}]
    return said


def allowed(here: str, there: str) -> bool:
    if here == there or here in SEE_ALL or (here, there) in NEIGHBOURS:
        return True
    if there in SEE_ALL or (there in CONTRACTS):
        return False
    return FLOORS[there] < FLOORS[here]


FILES = sorted(path for path in ROOT.rglob("*.py") if not path.name.startswith("test_"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_knows_only_what_stands_below_it(path: Path) -> None:
    assert not broken(path)


@pytest.mark.parametrize(
    "place, code",
    [
        ("engine/core", "import attncheck.properties.attention.inputs"),
        ("engine/core", "def f():\n    from ...attention import inputs"),
        ("engine/core", "import importlib\nimportlib.import_module('properties.attention.inputs')"),
        ("engine/core", "__import__('torch')"),
        ("engine/core", "import impls.catalogue"),
        ("engine/fresh", "import math"),
        ("engine", "from ..attention import inputs"),
        ("exact", "import scipy"),
        ("attention", "from ..pack import trial"),
    ],
)
def test_what_breaks_the_rule_is_seen(place: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / place / "planted.py"
    path.parent.mkdir(parents=True)
    path.write_text(code + "\n", encoding="utf-8")
    if place in ("engine", "engine/fresh"):
        with pytest.raises(ValueError, match="has no floor"):
            broken(path)
    else:
        assert broken(path)


def test_built_ins_know_no_property() -> None:
    for path in (ROOT.parent / "impls").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
        assert not {name.partition(".")[0] for name in names} & {"properties", "attncheck"}, path


def test_the_contracts_are_those_that_there_are() -> None:
    assert {"attention", "multihead", "block", "pack", "position", "cache"} <= set(CONTRACTS)


def test_the_rule_can_be_broken() -> None:
    """Each of these is an arrow that once was there."""
    for here, there in (
        ("search", "attention"),
        ("report", "attention"),
        ("core", "pack"),
        ("explain", "multihead"),
        ("cases", "core"),
        ("attention", "search"),
        ("pack", "attention"),
        ("exact", "cases"),
        ("attention", "multihead"),
        ("core", "top"),
    ):
        assert not allowed(here, there)
    assert room(("engine", "core", "target")) == "core" and room(("attention", "masks")) == "attention" and room(("catalogue",)) == "top"


def test_the_engine_names_no_contract() -> None:
    """No contract's or topic's name is a string in the engine; ``cached`` and the like are looked up by what a contract says of itself."""
    names = {*contracts(), *(topic.name for contract in contracts().values() for topic in contract.topics)} - WORDS
    for path in FILES:
        if room(path.relative_to(ROOT).parts) in ENGINE[:-1]:  # doors see everything
            strings = [node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)]
            assert not names.intersection(s for s in strings if isinstance(s, str)), path


def module(path: Path) -> tuple[str, ...]:
    parts = ("properties", *path.relative_to(ROOT).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def test_no_module_comes_back_to_itself() -> None:
    """No cycle of imports that are executed, late ones included: `prepare` raises where there is one."""
    modules = {module(path): path for path in FILES}
    known = {
        name: {found for each in imports(path, executed=True) if (found := nearest(each, modules)) != name}
        for name, path in modules.items()
    }
    TopologicalSorter({name: found - {()} for name, found in known.items()}).prepare()
    assert known["properties", "catalogue"]


def nearest(name: tuple[str, ...], modules: dict[tuple[str, ...], Path]) -> tuple[str, ...]:
    """The module that an imported name is, or is in; () for what is not ours."""
    while name and name not in modules:
        name = name[:-1]
    return name


def test_no_test_imports_another() -> None:
    """What two tests share stands in tests/support."""
    tests = {path.stem: path for path in Path(__file__).parent.rglob("test_*.py")}
    assert len(tests) > 50
    for path in tests.values():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        assert not {name.rpartition(".")[2] for name in names} & set(tests), path
