"""``attncheck new property|mutant|contract NAME``: a skeleton in its place in the clone, and what is left to fill in."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import keyword
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

from ... import catalogue  # makes the contracts known
from ..core.contract import contract_named, contracts

TEMPLATES = Path(__file__).with_name("templates")
BASE = __package__.removesuffix("properties.engine.doors")  # "" in a clone, "attncheck." installed


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="attncheck new", description="Write a skeleton into the clone that this is run in.")
    parser.add_argument("kind", choices=("property", "mutant", "contract"))
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--theme", help="the file it goes to; for a property also a new one, with --contract")
    parser.add_argument("--contract", metavar="NAME", help="of a property in a new theme")
    parser.add_argument("--killed-by", metavar="PROPERTY", help="the property that must catch a mutant")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Write the skeleton and print what to fill in. Raises ValueError with one sentence."""
    given = parser().parse_args(arguments)
    if not given.name.isidentifier() or keyword.iskeyword(given.name) or given.name != given.name.lower():
        raise ValueError(f"{given.name!r} is no name: small letters, digits and underscores make one, such as {_near(given.name)!r}")
    clone = clone_of(Path.cwd())
    if given.kind == "property":
        lines = new_property(clone, given.name, given.theme, given.contract)
    elif given.kind == "mutant":
        lines = new_mutant(clone, given.name, given.theme, given.killed_by)
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
    themes = {path.stem: path for path in clone.glob("properties/*/*.py") if path.stem in built_in(clone)}
    for path in themes.values():
        _free(path, name)
    if theme is None:
        raise ValueError(f"a property belongs to a theme: give --theme, one of {', '.join(sorted(themes))}, or a new one")
    if theme in themes:
        file = themes[theme]
        trial, said = _form(file)
    else:
        if contract is None:
            near = difflib.get_close_matches(theme, themes, 1)
            raise ValueError(f"there is no theme {theme!r}; " + (f"did you mean {near[0]!r}?" if near else "--contract NAME begins one"))
        file, trial = begin_theme(clone, theme, contract)
        said = f', contract="{contract}"'
    _append(file, "property", name=name, trial=trial, arguments=said)
    return [
        f"{file.relative_to(clone)}: {name}",
        "fill in: the formula; the docstring, one sentence; needs=(…) and the fields of the case that it is about; the claim",
        f"then:    python -m properties TARGET --property {name}",
        f"         a mutant that it kills: python -m properties new mutant NAME --theme THEME --killed-by {name}",
        f"         docs/explanation/attention.md: the number of properties of {file.stem}; tox run -e prove -- {name}",
    ]


def begin_theme(clone: Path, theme: str, contract: str) -> tuple[Path, str]:
    """An empty theme of a contract that the catalogue names, and the class of its trials."""
    _identifier(theme)
    folder = clone / "properties" / type(contract_named(contract)).__module__.split(".")[-2]
    trials = [node.name for node in _parsed(folder / "trial.py").body if isinstance(node, ast.ClassDef) and node.name.endswith("Trial")]
    file = folder / f"{theme}.py"
    if file.exists():
        raise ValueError(f"{file.relative_to(clone)} is there already, and is no theme")
    file.write_text(_template("theme", Title=theme.replace("_", " ").capitalize(), trial=trials[-1]), encoding="utf-8")
    into_catalogue(clone, folder.name, theme)
    return file, trials[-1]


def new_mutant(clone: Path, name: str, theme: str | None, killed_by: str | None) -> list[str]:
    """At the end of a theme of mutants."""
    registry = importlib.import_module(f"{BASE}impls.mutants.registry")
    if theme not in registry.THEMES:
        raise ValueError(f"a mutant belongs to a theme of impls/mutants: give --theme, one of {', '.join(registry.THEMES)}")
    if killed_by is None:
        raise ValueError("a mutant names the property that must catch it: give --killed-by; 'attncheck list' prints all")
    (killer,) = catalogue.select((killed_by,))[:1]
    contract = next(kind.name for kind in contracts().values() if killer.contract in (topic.name for topic in kind.topics))
    if contract not in registry.SIGNATURES:
        raise ValueError(f"mutants have no signature of the contract {contract}: add it to SIGNATURES in impls/mutants/registry.py")
    file = clone / "impls" / "mutants" / registry.THEMES[theme] / f"{theme}.py"
    _free(file, name)
    tree = _parsed(file)
    there = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names} | {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef)
    }
    if "mutant" not in there or "Any" not in there:
        raise ValueError(f"{file.relative_to(clone)} does not import mutant and Any: begin with that")
    formal = registry.SIGNATURES[contract].parameters.values()
    positional = [p.name for p in formal if p.kind is p.POSITIONAL_OR_KEYWORD]
    core = contract.removesuffix("_layer") if contract != "packed" else "attention"  # what the honest core of a theme is called
    call = f"return {core}({', '.join(positional)}, **options)  # TODO: with one step replaced"
    _append(
        file,
        "mutant",
        name=name,
        killed_by=killer.name,
        arguments="" if contract == "attention" else f', contract="{contract}"',
        formal=", ".join([*(f"{p}: Any" for p in positional), "**options: Any"]),
        body=call if core in there else 'raise NotImplementedError("TODO: the honest code with one mistake")',
    )
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
    _identifier(theme)
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
    node = _assigned(_parsed(clone / "properties" / "catalogue.py"))
    return [name.id for name in ast.walk(node) if isinstance(name, ast.Name)]


def into_catalogue(clone: Path, chapter: str, theme: str) -> None:
    """One import and one word more."""
    file = clone / "properties" / "catalogue.py"
    lines, tree = file.read_text(encoding="utf-8").splitlines(), _parsed(file)
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


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _form(file: Path) -> tuple[str, str]:
    """What the last property of a theme takes, and how it names its contract."""
    *_, last = (node for node in _parsed(file).body if isinstance(node, ast.FunctionDef) and _declaration(node))
    call = _declaration(last)
    said = [ast.unparse(word.value).strip("'") for word in call.keywords if word.arg == "contract"] if call else []
    return ast.unparse(last.args.args[0].annotation or ast.Name("Any")), "".join(f', contract="{name}"' for name in said)


def _declaration(node: ast.FunctionDef) -> ast.Call | None:
    return next((d for d in node.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func) == "declare"), None)


def _free(file: Path, name: str) -> None:
    if name in {node.name for node in _parsed(file).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}:
        raise ValueError(f"{name} is taken: {file.parent.name}/{file.name} has one already")


def _identifier(name: str) -> None:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is no name of a theme")


def _near(name: str) -> str:
    return re.sub(r"\W+|^(?=\d)", "_", name.lower()).strip("_") or "rows_sum_to_one"


def _template(file: str, **names: str) -> str:
    return Template((TEMPLATES / f"{file}.txt").read_text(encoding="utf-8")).substitute(names)


def _append(file: Path, template: str, **names: str) -> None:
    file.write_text(file.read_text(encoding="utf-8").rstrip("\n") + "\n" + _template(template, **names), encoding="utf-8")
