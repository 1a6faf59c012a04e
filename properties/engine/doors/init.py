"""``attncheck init mykernel.py``: what was found out that a kernel supports, with a word on each key, and a test file."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from ... import catalogue  # makes the contracts known  # noqa: F401
from ..core.supports import Supports
from ..core.target import Target
from ..report.dialect import supports_text
from ..search.find_target import Builtins, containing, find_targets, users
from .asked import spoken_with

BASE = __package__.removesuffix(".engine.doors")  # "properties" in a clone, "attncheck.properties" installed
TEST = Template('''"""$target is held to every property of attention that applies to it; $toml says what it supports."""

import tomllib
from pathlib import Path

from $base import parametrize_with_properties
from $module import $name

SUPPORTS = tomllib.loads(Path(__file__).with_name("$toml").read_text(encoding="utf-8"))


@parametrize_with_properties({"$name": $name}, cases=40, supports=SUPPORTS)
def test_$name(check):
    check()
''')


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="attncheck init", description="Write what a kernel supports, as found out, and a test file.")
    parser.add_argument("target", metavar="FILE.py[:NAME]")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Write the two files beside the kernel. Raises ValueError if one is there already, CannotRun for what is no attention."""
    given = parser().parse_args(arguments).target
    file = given.partition(":")[0]
    path = Path(file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise ValueError(f"{given!r} is no FILE.py or FILE.py:NAME whose file can be imported")
    with contextlib.redirect_stdout(sys.stderr), containing(users()):  # what the file prints is no part of this
        target = spoken_with(find_targets(given, Builtins())[0])
        name = target.name.rpartition(":")[2]
    toml, test = path.with_name(f"{path.stem}.toml"), path.with_name(f"test_{path.stem}.py")
    for there in (toml, test):
        if there.exists():
            raise ValueError(f"{there} is there already")
    toml.write_text(commented(target), encoding="utf-8")
    facts = {"target": f"{path.stem}.{name}", "toml": toml.name, "base": BASE, "module": path.stem, "name": name}
    test.write_text(TEST.substitute(facts), encoding="utf-8")
    print(f"{toml}: what {name} was seen to do, and what else can be declared\n{test}: a test for every property\nthen:    pytest {test}")
    return 0


def commented(target: Target) -> str:
    """Keys of supports as TOML: those that were found out, then all others with their default, commented out."""
    learned = {**target.kind.learned_supports(target), "dtypes": target.dtypes}
    meanings = comments()
    written = supports_text(target, learned).splitlines()
    lines = [
        f"{line}  # {meanings[key]}" if (key := line.partition(" = ")[0]) in learned and meanings.get(key) else line for line in written
    ]
    lines += ["", "# Beyond that it is held to these, unless another value is declared:"]
    for field in dataclasses.fields(Supports):
        if field.name not in learned and field.default is not None:
            lines.append(f"# {supports_text(target, {field.name: field.default}).splitlines()[-1]}" + _meaning(meanings, field.name))
    return "\n".join(lines) + "\n"


def _meaning(meanings: Mapping[str, str], key: str) -> str:
    return f"  # {meanings[key]}" if meanings.get(key) else ""


def comments() -> dict[str, Any]:
    """What the source says of each key."""
    return dict(re.findall(r"^    (\w+):[^#\n]*  # (.*)$", inspect.getsource(Supports), re.MULTILINE))
