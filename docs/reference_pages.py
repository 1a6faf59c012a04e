"""The reference, written by the code: properties, commands, what a target supports, cases, JSON, Python. A hook of mkdocs.

python docs/reference_pages.py FOLDER      writes the pages without mkdocs
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import properties
from properties import catalogue
from properties.engine.cases.case import Case
from properties.engine.core.contract import Contract, contracts
from properties.engine.core.supports import CHOICES, Supports
from properties.engine.doors import checks, cli
from properties.exact import oracle

PICTURES = ("benchmarks/peers/peers.svg",)  # outside of docs/; pages name them as from two folders down
WRITTEN = "<!-- written by docs/reference_pages.py -->\n\n"


def pages() -> dict[str, str]:
    """Where each page stands → its Markdown."""
    made = {
        "properties": properties_page(),
        "commands": commands_page(),
        "supports": supports_page(),
        "cases": cases_page(),
        "json": json_page(),
        "python": python_page(),
    }
    return {f"reference/{name}.md": WRITTEN + text for name, text in made.items()}


def cell(text: object) -> str:
    """In a table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


# ---------------------------------------------------------------- properties


def properties_page() -> str:
    """Every property: sentence, formula, what it needs, the mistakes that it must catch."""
    known = mistakes()
    lines = [
        f"# Properties\n\n{len(catalogue.PROPERTIES)} properties in {len(catalogue.THEMES)} themes, in the order of a text on attention."
    ]
    theme = ""
    for prop in catalogue.PROPERTIES.values():
        if prop.theme != theme:
            theme = prop.theme
            module = sys.modules[prop.check.__module__]
            lines.append(f"## {theme}\n\n{(inspect.getdoc(module) or '').split(chr(10))[0]}")
        how = "bit for bit" if prop.exact else "inside the bound"
        needs = f"; needs {', '.join(f'`{name}`' for name in prop.needs)}" if prop.needs else ""
        lines.append(f"### `{prop.name}`\n\n{prop.statement}\n\n    {prop.formula}\n\nAbout {prop.topic.subject}, {how}{needs}.")
        if caught := known.get(prop.name):
            lines.append("It must catch:\n\n" + "\n".join(f"* {mistake}" + f" ({source})" * bool(source) for mistake, source in caught))
    return "\n\n".join(lines) + "\n"


def mistakes() -> dict[str, list[tuple[str, str]]]:
    """Property → (mistake, where it happened), read off the source, since the mistakes themselves are written in PyTorch."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "impls" / "mutants").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "mutant" and node.args:
                given = {word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)}
                if isinstance(node.args[0], ast.Constant) and given.get("killed_by"):
                    found.setdefault(str(given["killed_by"]), []).append((str(node.args[0].value), str(given.get("source") or "")))
    return found


# ---------------------------------------------------------------- commands


def commands_page() -> str:
    """What each command says of itself."""
    said = {"attncheck": help_of(lambda: cli.main(["--help"]))}
    said |= {f"attncheck {word}": help_of(lambda word=word: cli.main([word, "--help"])) for word in cli.WORDS}  # type: ignore[misc]
    parts = [f"## `{name}`\n\n```text\n{text.strip()}\n```" for name, text in said.items()]
    rest = """`attncheck list` prints every property with its formula; `attncheck new property|mutant|contract NAME` writes a skeleton, in a
clone, where `python -m properties` is `attncheck` without installing anything. Under pytest the options are `--impl`, `--device`, `--cases`,
`--round` and `--supports`.

What a target prints from Python goes to standard error, with the progress; the report has standard output for itself. After Ctrl-C what was
found so far is printed. 141 is the exit status in `attncheck list | head`."""
    return "# Commands and options\n\n" + "\n\n".join([*parts, rest]) + "\n"


def help_of(command: Callable[[], object]) -> str:
    """What a command prints when it is asked for help, a hundred columns wide."""
    before, out = os.environ.get("COLUMNS"), io.StringIO()
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            command()
    finally:
        os.environ.pop("COLUMNS")
        os.environ |= {"COLUMNS": before} if before else {}
    return out.getvalue()


# ---------------------------------------------------------------- what a target supports


UNSAID = {
    "head_dims": "any",
    "max_length": "none",
    "parameters": "from the signature",
    "contract": "from the signature",
    "arithmetic": "`same+lse`; halves: `stored+lse`",
}  # where nothing is declared, and no call finds it out


def supports_page() -> str:
    """Every key, its default and its choices; the meaning is the comment above it, or beside it, in the source."""
    source = inspect.getsource(Supports)
    rows = []
    for field in dataclasses.fields(Supports):
        line = re.search(rf"((?:^    # .*\n)*)^    {field.name}:.*?(?:  # (.*))?$", source, re.MULTILINE)
        above, beside = line.groups(default="") if line else ("", "")
        meaning = re.sub(r"^    # ", "", above, flags=re.MULTILINE).replace("\n", " ").strip() or beside
        choices = CHOICES.get(field.name) or (field.default if field.name in ("mask_kinds", "mask_axes") else ())
        plain = "all" if isinstance(field.default, tuple) else f"`{json.dumps(field.default)}`"
        default = UNSAID.get(field.name, "found out") if field.default is None else plain
        among = ", ".join(f"`{json.dumps(choice)}`" for choice in choices)
        rows.append(f"| `{field.name}` | {default} | {cell(among)} | {cell(meaning)} |")
    head = "| key | default | choices | meaning |\n|---|---|---|---|"
    intro = """What a target can do, and which conventions it follows: an attribute `supports` of the callable, or a TOML file for `--supports`,
so that the target need not know of the checker:

    dtypes = ["float64", "float32"]
    zero_sizes = false
    max_length = 64

What is declared is a claim, and is tested; what is not is found out. `attncheck init` and `--write-supports` write what was found out."""
    contract = f"`contract` is one of {', '.join(f'`{name}`' for name in contracts())}."
    return f"# What a target supports\n\n{intro}\n\n{head}\n" + "\n".join(rows) + f"\n\n{contract}\n"


# ---------------------------------------------------------------- cases


def cases_page() -> str:
    """Every field of every kind of case, with the reason for which it is there."""
    kinds: dict[type[Case], str] = {}
    for contract in contracts().values():
        for topic in contract.topics:
            kinds.setdefault(topic.case, topic.subject)
    parts = [
        "# Fields of a case\n\nWhat determines a call. Fields that are not printed have their default value; `attncheck explain CASE` says the same."
    ]
    for kind, subject in kinds.items():
        rows = [
            f"| `{name}` | `{getattr(kind(), name)!r}` | {cell(field.why)} | {unusual(field.unusual)} |"
            for name, field in kind.fields().items()
        ]
        parts.append(
            f"## A case of {subject}\n\n| field | default | why there is one | unusual values |\n|---|---|---|---|\n" + "\n".join(rows)
        )
    return "\n\n".join(parts) + "\n"


def unusual(values: Mapping[Any, str]) -> str:
    """Values that look arbitrary, with their reason."""
    return "; ".join(f"`{', '.join(map(repr, at)) if isinstance(at, tuple) else repr(at)}`: {cell(why)}" for at, why in values.items())


# ---------------------------------------------------------------- JSON


def json_page() -> str:
    """The keys of a real, small run of a wrong kernel, with their types."""
    data = small_run()
    rows = [f"| `{path}` | {kind} |" for path, kind in dict.fromkeys(keys(data, ""))]
    intro = """`--json FILE` writes this; the page (`--html`) is made of it alone. `NAME` stands for a name, `[]` for every element of a list.
A number that is none is a text: `"nan"`, `"inf"`."""
    return f"# The JSON of a run\n\n{intro}\n\n| key | holds |\n|---|---|\n" + "\n".join(rows) + "\n"


def small_run() -> dict[str, Any]:
    """A run that refutes one property and holds another."""
    import numpy as np

    from properties.engine.doors.files import run_json

    def attention(q: Any, k: Any, v: Any) -> Any:
        return np.broadcast_to(v.sum(axis=2, keepdims=True), (*q.shape[:3], v.shape[3])).copy()

    before = checks.known_mistakes
    checks.known_mistakes = lambda: []  # type: ignore[assignment]
    try:
        verdict = checks.verify(
            attention, properties=("constant_values_are_returned", "zero_scale_averages"), cases=3, supports={"zero_sizes": False}
        )
    finally:
        checks.known_mistakes = before
    return run_json([verdict.report], {}, [])


NAMED = ("properties", "features", "edges", "speaks", "differs", "wrong", "refuses", "untried", "not_run", "machine")


def keys(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every key, and what it holds."""
    kinds = {
        dict: "object",
        list: "list",
        str: "text",
        bool: "true or false",
        int: "number",
        float: "number",
        type(None): "null, or as where there is one",
    }
    if path:
        yield path, kinds[type(value)]
    if isinstance(value, dict):
        for name, inner in value.items():
            named = path.rpartition(".")[2] in NAMED
            yield from keys(inner, f"{path}.{'NAME' if named else name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict | list):
                yield from keys(inner, f"{path}[]")


# ---------------------------------------------------------------- Python


def python_page() -> str:
    """Signatures and docstrings of what is public."""
    doors = [*(getattr(properties, name) for name in properties.__all__), checks.Verdict]
    parts = ["# Python\n\nFrom `attncheck.properties`:", *(entry(thing) for thing in doors)]
    parts += [
        "## The exact answer\n\nFrom `attncheck.properties.exact.oracle`:",
        *(entry(thing) for thing in (oracle.Problem, oracle.solve, oracle.Exact)),
    ]
    parts.append("## A contract of one's own\n\nFrom `attncheck.properties.engine.core.contract`: what the engine asks of it.")
    parts += [
        entry(member, f"Contract.{name}")
        for name, member in vars(Contract).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    return "\n\n".join(parts) + "\n"


def entry(thing: Any, name: str = "") -> str:
    """A signature and a docstring; of a record its fields, with their comments."""
    title = name or thing.__name__
    if dataclasses.is_dataclass(thing):
        said = [line.strip() for line in inspect.getsource(thing).splitlines() if re.match(r"    \w+:", line)]
        signature = f"{title}\n    " + "\n    ".join(said)
    elif inspect.isclass(thing):
        signature = title
    else:
        signature = f"{title}{inspect.signature(thing)}"
    return f"### `{title}`\n\n```python\n{signature}\n```\n\n{inspect.getdoc(thing) or ''}"


# ---------------------------------------------------------------- mkdocs


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that are on disk."""
    from mkdocs.structure.files import File

    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    for picture in PICTURES:
        files.append(File.generated(config, f"pictures/{Path(picture).name}", abs_src_path=str(ROOT / picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Pictures that stand elsewhere in the clone, where they stand in the site."""
    for picture in PICTURES:
        markdown = markdown.replace(f"../../{picture}", f"../pictures/{Path(picture).name}")
    return markdown


def main(arguments: Sequence[str]) -> None:
    """Write the pages into a folder."""
    for place, text in pages().items():
        file = Path(arguments[0]) / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
