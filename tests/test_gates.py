"""What others put before their own code: the action, the hooks, and what the repository says of itself."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = """
import numpy as np

def attention(q, k, v, is_causal=False):
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    if is_causal:
        logits = np.where(np.tri(*logits.shape[2:], k=0, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v

attention.supports = {"zero_sizes": False, "dtypes": ["float64"]}
"""
ONE = "--property future_tokens_are_ignored --case Case(keys=2,is_causal=True)"  # a run of one case


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A kernel, and ``attncheck`` and ``python`` as commands of this clone."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "bin").mkdir()
    for name, arguments in (("attncheck", '-m properties "$@"'), ("python", '"$@"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run(command: str, folder: Path, **given: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    mine = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **given}
    return subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=folder, env=mine, text=True, capture_output=True, timeout=120)


def action() -> dict[str, tuple[str, dict[str, str]]]:
    """The steps of the action that run a command: name → (command, environment)."""
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    steps = {}
    for step in re.split(r"^    - name: ", text, flags=re.MULTILINE)[1:]:
        name = step.splitlines()[0]
        if found := re.search(r"^      run: (?:\|\n((?:        .*\n)+)|(.*)\n)", step, re.MULTILINE):
            given = dict(re.findall(r"^        ([A-Z]+): (\$\{\{ .* \}\})$", step, re.MULTILINE))
            steps[name] = ((found[1] or found[2]), given)
    return steps


def test_the_steps_of_the_action_check_a_kernel(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    command, given = action()["check"]
    inputs = set(re.findall(r"^  (\w+):$", (ROOT / "action.yml").read_text(encoding="utf-8").split("runs:")[0], re.MULTILINE))
    assert {re.sub(r"\W+", " ", value).split()[1] for value in given.values()} == inputs == {"target", "options", "page", "json"}
    chosen = {"TARGET": "kernel.py:attention", "PAGE": "a page.html", "JSON": "a.json"}
    ran = run(command, folder, OPTIONS=ONE, **chosen)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (folder / "a page.html").read_text(encoding="utf-8").startswith("<!doctype html>") and (folder / "a.json").exists()


def test_what_is_given_to_the_action_is_no_command(folder: Path) -> None:
    """Inputs reach the shell as variables alone."""
    for command, _ in action().values():
        assert "${{" not in command
    command, _ = action()["check"]
    ran = run(command, folder, TARGET="kernel.py:attention; touch owned", OPTIONS="$(touch owned)", PAGE="p.html", JSON="j.json")
    assert ran.returncode == 2 and not (folder / "owned").exists()


def test_the_action_installs_what_there_is() -> None:
    command, _ = action()["install"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert command == 'python -m pip install --quiet "${ATTNCHECK}[report]"' and "report" in extras


def test_the_hooks_are_commands_that_run(folder: Path) -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^  entry: (.*)$", text, re.MULTILINE)
    assert entries == ["attncheck", "attncheck replay"]
    assert run(entries[1], folder).stdout == "no finding is kept here\n"


def test_the_citation_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = dict(re.findall(r"^(\S+): (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE))
    assert {cited[name] for name in ("title", "version", "license")} == {project["name"], project["version"], project["license"]}
    assert cited["cff-version"] == "1.2.0" and cited["keywords"].strip("[]").split(", ") == project["keywords"]
