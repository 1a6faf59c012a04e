"""``attncheck new property|mutant|contract NAME``: a skeleton in its place in the clone, and what is left to fill in."""

from __future__ import annotations

import argparse
import ast
import builtins
import difflib
import importlib
import keyword
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from types import ModuleType

from ... import catalogue  # makes the contracts known
from ..core.contract import contract_named, contracts
from ..core.declare import Property
from .skeleton import Declared, declarations, like_body, like_decorator, like_head, parsed, plain_call

TEMPLATES = Path(__file__).with_name("templates")
BASE = __package__.removesuffix("properties.engine.doors")  # "" in a clone, "attncheck." installed


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="attncheck new", description="Write a skeleton into the clone that this is run in.")
    parser.add_argument("kind", choices=("property", "mutant", "contract"))
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--theme", help="the file it goes to; for a property also a new one, with --contract")
    parser.add_argument("--contract", metavar="NAME", help="of a property in a new theme; else which, where a theme has several")
    parser.add_argument("--killed-by", metavar="PROPERTY", help="the property that must catch a mutant")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Write the skeleton and print what to fill in. Raises ValueError with one sentence."""
    given = parser().parse_args(arguments)
    _named(given.name)
    clone = clone_of(Path.cwd())
    if given.kind == "property":
        lines = new_property(clone, given.name, given.theme, given.contract)
    elif given.kind == "mutant":
        lines = new_mutant(clone, given.name, given.theme, given.killed_by, given.contract)
    else:
        lines = new_contract(clone, given.name, given.theme or f"{given.name}s")
    print("\n".join(lines))
    return 0


def clone_of(folder: Path) -> Path:
    """The clone that a folder lies in."""
    for root in (folder, *folder.parents):
        if (root / "properties" / "catalogue.py").exists() and (root / "impls" / "mutants" / "registry.py").exists():
            return root
    raise ValueError("this is no clone of attncheck: run it in one, in the folder that holds properties and impls")


def new_property(clone: Path, name: str, theme: str | None, contract: str | None) -> list[str]:
    """At the end of a theme, in the form of the property before it; or in a new theme."""
    themes: dict[str, list[ModuleType]] = {}
    for module in catalogue.BUILT_IN:
        themes.setdefault(module.__name__.rpartition(".")[2], []).append(module)
        _free(_file(clone, module), name)
    if theme is None:
        raise ValueError(f"a property belongs to a theme: give --theme, one of {', '.join(sorted(themes))}, or a new one")
    if theme in themes:
        module, like = _chosen(theme, themes[theme], contract)
        file = _file(clone, module)
        node = declarations(file)[like.name]
        trial = _first_annotation(node)
        decorator = like_decorator(node, module, formula="TODO: the formula", contract=like.contract)
    elif contract is None:
        near = difflib.get_close_matches(theme, themes, 1)
        raise ValueError(f"there is no theme {theme!r}; " + (f"did you mean {near[0]!r}?" if near else "--contract NAME begins one"))
    else:
        file, trial = begin_theme(clone, theme, contract)
        decorator = f'@declare("TODO: the formula", contract="{contract}")'
    _append(file, "property", name=name, trial=trial, decorator=decorator)
    return [
        f"{file.relative_to(clone)}: {name}",
        "fill in: the formula; the docstring, one sentence; needs=(…) and the fields of the case that it is about; the claim",
        f"then:    python -m properties TARGET --property {name}",
        f"         a mutant that it kills: python -m properties new mutant NAME --theme THEME --killed-by {name}",
        f"         docs/explanation/attention.md: the number of properties of {file.stem}; tox run -e prove -- {name}",
    ]


def _chosen(theme: str, modules: Sequence[ModuleType], contract: str | None) -> tuple[ModuleType, Property]:
    """The theme of a name, of several the one about a contract, and its last property. Raises ValueError with what it may be."""
    about = {prop.contract: (module, prop) for module in modules for prop in vars(module).values() if isinstance(prop, Property)}
    if contract is None and len(modules) > 1:
        raise ValueError(f"{len(modules)} themes are called {theme!r}: say with --contract which, {' or '.join(about)}")
    if contract not in (None, *about):
        raise ValueError(f"the theme {theme!r} is about {' and '.join(about)}, not {contract!r}: give a new theme another name")
    return about[contract or list(about)[-1]]


def begin_theme(clone: Path, theme: str, contract: str) -> tuple[Path, str]:
    """An empty theme of a contract that the catalogue names, and the class of its trials."""
    _new_theme(theme)
    folder = clone / "properties" / type(contract_named(contract)).__module__.split(".")[-2]
    trials = [node.name for node in parsed(folder / "trial.py").body if isinstance(node, ast.ClassDef) and node.name.endswith("Trial")]
    file = folder / f"{theme}.py"
    if file.exists():
        raise ValueError(f"{file.relative_to(clone)} is there already, and is no theme")
    file.write_text(_template("theme", Title=theme.replace("_", " ").capitalize(), trial=trials[-1]), encoding="utf-8")
    into_catalogue(clone, folder.name, theme)
    return file, trials[-1]


def new_mutant(clone: Path, name: str, theme: str | None, killed_by: str | None, contract: str | None = None) -> list[str]:
    """At the end of a theme of mutants."""
    registry = importlib.import_module(f"{BASE}impls.mutants.registry")
    if theme not in registry.THEMES:
        raise ValueError(f"a mutant belongs to a theme of impls/mutants: give --theme, one of {', '.join(registry.THEMES)}")
    if killed_by is None:
        raise ValueError("a mutant names the property that must catch it: give --killed-by; 'attncheck list' prints all")
    (killer,) = catalogue.select((killed_by,))[:1]
    file = clone / "impls" / "mutants" / registry.THEMES[theme] / f"{theme}.py"
    try:
        module = importlib.import_module(f"{BASE}impls.mutants.{registry.THEMES[theme]}.{theme}")
    except ModuleNotFoundError as error:
        raise ValueError(f"{file.relative_to(clone)} cannot be imported: {error}") from None
    put = [kind.name for kind in contracts().values() if killer.contract in (topic.name for topic in kind.topics)]
    there = [(registry.MUTANTS.get(f"{theme}.{each}"), node) for each, node in declarations(file).items()]
    likes = [(known.contract, node) for known, node in there if known and known.contract in put and contract in (None, known.contract)]
    if not likes:
        what = f"mutants of {contract}" if contract else "mutants"
        raise ValueError(f"{killer.name} is not put to {what} in {file.relative_to(clone)}: give another --theme or --killed-by")
    contract, like = next((pair for pair in reversed(likes) if plain_call(pair[1])), likes[-1])
    if isinstance(like, ast.ClassDef) and like.name != like.name.lower():
        name = "".join(map(str.capitalize, name.split("_")))
    _free(file, name)
    told = {"mistake": "TODO: the mistake in one line", "source": "TODO: owner/repo#123, or teaching code", "killed_by": killer.name}
    decorator = like_decorator(like, module, ("supports",), **told, contract=contract)
    _append(file, "mutant", decorator=decorator, head=like_head(like, name), body=like_body(like))
    return [
        f"{file.relative_to(clone)}: {name}",
        'fill in: the mistake in one line, so that a reading can say "behaves like …"; where it happened; the step that is wrong',
        f"then:    python -m pytest tests/impls/test_mutants.py -k {name}",
        "         python -m benchmarks.kill_table and python -m benchmarks.detection measure what is missing",
    ]


def new_contract(clone: Path, name: str, theme: str) -> list[str]:
    """A folder with all that a contract needs, and a property that holds of the identity."""
    folder = clone / "properties" / name
    if folder.exists() or name in contracts():
        raise ValueError(f"there is a contract {name!r} already: take another name")
    if theme in built_in(clone):
        raise ValueError(f"there is a theme {theme!r} already: give another with --theme")
    _new_theme(theme)
    names = {"name": name, "Class": "".join(map(str.capitalize, name.split("_"))), "contract": name}
    names |= {"trial": f"{names['Class']}Trial", "Title": theme.replace("_", " ").capitalize()}
    folder.mkdir()
    for file in ("__init__", "contract", "cases", "call", "trial", "exact"):
        (folder / f"{file}.py").write_text(_template(file, **names), encoding="utf-8")
    (folder / f"{theme}.py").write_text(_template("theme", **names) + _template("first", **names), encoding="utf-8")
    into_catalogue(clone, name, theme)
    return [
        f"properties/{name}: contract.py cases.py call.py trial.py exact.py {theme}.py, and a word in properties/catalogue.py",
        f"fill in: {len(re.findall('TODO', ''.join(p.read_text(encoding='utf-8') for p in folder.glob('*.py'))))} places marked TODO in it",
        f'try it:  a function with supports = {{"contract": "{name}"}} that returns its argument: --property {theme}',
        f'then:    pyproject.toml: "attncheck.properties.{name}" among the packages; docs/explanation/attention.md: {theme} among the themes',
    ]


# ------------------------------------------------------------ the catalogue, read and written as text


def built_in(clone: Path) -> list[str]:
    """The themes that the catalogue of a clone names."""
    node = _assigned(parsed(clone / "properties" / "catalogue.py"))
    return [name.id for name in ast.walk(node) if isinstance(name, ast.Name)]


def into_catalogue(clone: Path, chapter: str, theme: str) -> None:
    """One import and one word more."""
    file = clone / "properties" / "catalogue.py"
    lines, tree = file.read_text(encoding="utf-8").splitlines(), parsed(file)
    lines.insert((_assigned(tree).end_lineno or 0) - 1, f"    {theme},")
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module]
    same = next((node for node in froms if node.module == chapter), None)
    if same:
        names = sorted([*(alias.name for alias in same.names), theme])
        text = f"from .{chapter} import {', '.join(names)}"
        wide = [f"from .{chapter} import (", *(f"    {name}," for name in names), ")"]
        lines[same.lineno - 1 : same.end_lineno] = [text] if len(text) <= 120 else wide
    else:
        after = next((node for node in froms if str(node.module) > chapter), None)
        lines.insert(after.lineno - 1 if after else froms[-1].end_lineno or 0, f"from .{chapter} import {theme}")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _assigned(tree: ast.Module) -> ast.expr:
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "BUILT_IN" and node.value:
            return node.value
    raise ValueError("properties/catalogue.py has no list BUILT_IN of themes")


# ------------------------------------------------------------ small things


def _file(clone: Path, module: ModuleType) -> Path:
    chapter, theme = module.__name__.split(".")[-2:]
    return clone / "properties" / chapter / f"{theme}.py"


def _first_annotation(node: Declared) -> str:
    annotation = node.args.args[0].annotation if isinstance(node, ast.FunctionDef) else None
    return ast.unparse(annotation) if annotation else "Any"


def _free(file: Path, name: str) -> None:
    """Raises ValueError for a name that the file defines or imports, or that Python has."""
    nodes = parsed(file).body
    taken = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    taken |= {x.id for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign) for x in ast.walk(node) if isinstance(x, ast.Name)}
    taken |= {
        alias.asname or alias.name.partition(".")[0] for x in nodes if isinstance(x, ast.Import | ast.ImportFrom) for alias in x.names
    }
    if name in taken or hasattr(builtins, name):
        raise ValueError(f"{name} is taken: {file.parent.name}/{file.name} has one already")


def _named(name: str) -> None:
    if not _is_name(name):
        raise ValueError(f"{name!r} is no name: small letters, digits and underscores make one, such as {_near(name)!r}")


def _new_theme(name: str) -> None:
    """Raises ValueError for a theme that cannot be imported into the catalogue under its name."""
    _named(name)
    if hasattr(catalogue, name):
        raise ValueError(f"{name!r} is a name of properties/catalogue.py already: give the theme another with --theme")


def _is_name(name: str) -> bool:
    return name.isidentifier() and name == name.lower() and not keyword.iskeyword(name)


def _near(name: str) -> str:
    near = re.sub(r"\W+", "_", name.lower()).strip("_")
    return next((each for each in (near, f"{near}_", f"_{near}") if near and _is_name(each)), "rows_sum_to_one")


def _template(file: str, **names: str) -> str:
    return Template((TEMPLATES / f"{file}.txt").read_text(encoding="utf-8")).substitute(names)


def _append(file: Path, template: str, **names: str) -> None:
    file.write_text(file.read_text(encoding="utf-8").rstrip("\n") + "\n" + _template(template, **names), encoding="utf-8")
