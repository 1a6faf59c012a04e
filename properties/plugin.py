"""The pytest door: ``pytest properties --impl TARGET``, also ``pytest --pyargs attncheck.properties --impl TARGET``.

Installed as an entry point that is named after this module as a clone imports it, so that a clone's conftest.py, which
asks for it by that name, does not register it a second time beside an installed wheel.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: tiny arrays are faster with one thread

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--impl",
        {
            "action": "append",
            "default": [],
            "metavar": "TARGET",
            "help": "an attention to check: module:attribute, "
            "file.py:attribute, or the name or glob of a built-in (repeatable; default: all built-ins)",
        },
    ),
    ("--like", {"metavar": "REFERENCE", "help": "put each target to the same calls as this one, instead of the properties"}),
    ("--device", {"default": "cpu", "help": "the device on which to check, cpu or cuda"}),
    ("--cases", {"type": int, "default": 60, "metavar": "N", "help": "cases per property (default 60)"}),
    ("--round", {"type": int, "default": 0, "metavar": "N", "help": "another round draws other cases"}),
    ("--attncheck-strict", {"action": "store_true", "help": "refusals, edges and conventions that nobody declared are findings, too"}),
    ("--attncheck-in-process", {"action": "store_true", "help": "the targets in the process of the tests, as for a debugger"}),
    ("--supports", {"metavar": "FILE.toml", "help": "what the targets support and which conventions they follow"}),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attncheck", "attention checked by properties")
    for name, how in OPTIONS:
        try:
            group.addoption(name, **how)
        except ValueError:  # another plugin has an option of this name; ours keeps its default
            continue


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "example(**needs): a worked example, put to every target and dtype that fits it")


def _option(config: pytest.Config, name: str) -> Any:
    declared = dict(OPTIONS)[f"--{name}"]
    return config.getoption(f"--{name}", declared.get("default"))


_TARGETS = pytest.StashKey[dict[str, Any]]()


def _found(config: pytest.Config) -> dict[str, Any]:
    """The targets of the run, their known deviations and the plan; found once."""
    if _TARGETS not in config.stash:
        from hypothesis.database import DirectoryBasedExampleDatabase

        from .engine.core.supports import Supports
        from .engine.core.target import CannotRun
        from .engine.doors.asked import spoken_with
        from .engine.doors.known import beside, known_by_effect
        from .engine.search.find_target import NEVER, Builtins, containing, find_targets, users
        from .engine.search.search import Plan

        builtins, device = Builtins(), _option(config, "device")
        declared = _option(config, "supports")
        supports = Supports.in_file(declared) if declared else None
        which = NEVER if _option(config, "attncheck-in-process") else users(device)
        names = _option(config, "impl") or [n for n in builtins.entries if builtins.unavailable(n, device) is None]
        known = builtins.deviations()
        strict = bool(_option(config, "attncheck-strict"))
        try:
            with containing(which):
                targets = [target for name in names for target in find_targets(name, builtins, supports, device)]
                foreign = [target for target in targets if target.name not in builtins.entries]
                targets = [target for target in targets if target not in foreign]
                foreign = [spoken_with(target, device, strict) for target in foreign]
                if like := _option(config, "like"):
                    targets, foreign = [], [beside(target, like, builtins, device) for target in (*targets, *foreign)]
        except CannotRun as error:
            raise pytest.UsageError(f"attncheck: {error}") from None
        if not (like or strict):
            known += tuple(deviation for target in foreign for deviation in known_by_effect(target, known, builtins, device))
        plan = Plan(
            examples=_option(config, "cases"),
            round=_option(config, "round"),
            device=device,
            deviations=known,
            database=DirectoryBasedExampleDatabase(".hypothesis/attncheck"),
        )
        config.stash[_TARGETS] = {"targets": targets, "foreign": foreign, "plan": plan, "strict": strict}
    return config.stash[_TARGETS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``attention_check``: every property of every target; ``known_deviation``; ``target``, ``dtype``: all that fit an example."""
    wanted = {"attention_check", "known_deviation", "target"} & set(metafunc.fixturenames)
    marks = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    marked = {name.strip() for names in marks for name in (names.split(",") if isinstance(names, str) else names)}
    for name in wanted - marked:
        from .engine.doors.checks import checks, deviation_checks, fits

        found = _found(metafunc.config)
        targets, foreign, plan = found["targets"], found["foreign"], found["plan"]
        if name == "attention_check":
            own = checks(foreign, dataclasses.replace(plan, strict=found["strict"]))
            made = [pytest.param(check, id=check.id) for check in checks(targets, plan, conventions=False) + own]
        elif name == "known_deviation":
            made = [
                pytest.param(check, id=f"{check.target.name}-{number}")
                for number, check in enumerate(deviation_checks([*targets, *foreign], plan.deviations, plan.device))
            ]
        else:
            needs = {key: value for mark in metafunc.definition.iter_markers("example") for key, value in mark.kwargs.items()}
            name = "target, dtype"
            made = [
                pytest.param(target, dtype, id=f"{target.name}-{dtype}")
                for target in (*targets, *foreign)
                if target.like is None
                for dtype in target.dtypes
                if fits(target, dtype, **needs)
            ]
        metafunc.parametrize(name, made)
