"""The recipes of CONTRIBUTING.md, carried out in a copy of the tree."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = ("A property", "A mutant", "An implementation", "A contract", "A framework")
Run = Callable[..., subprocess.CompletedProcess[str]]
ATTENTION = """
import numpy as np

def attention(q, k, v, *, is_causal=False):
    scores = q @ np.swapaxes(k, -1, -2) * max(q.shape[-1], 1) ** -0.5
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v

attention.supports = {"framework": "numpy", "zero_sizes": False, "dtypes": ["float64"]}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What is under version control, or would be."""
    for folder in ("properties", "impls", "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for file in ("pyproject.toml", "README.md", "conftest.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


@pytest.fixture
def run(tree: Path) -> Run:
    """A command in that tree; ``status`` is what it must leave with."""

    def ran(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
        mine |= {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        done = subprocess.run([sys.executable, "-m", *arguments], cwd=tree, env=mine, capture_output=True, encoding="utf-8", timeout=300)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return ran


def replaced(file: Path, *pairs: tuple[str, str]) -> None:
    """Fill in a skeleton."""
    text = file.read_text(encoding="utf-8")
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


# ------------------------------------------------------------ the page


def test_every_recipe_is_short() -> None:
    parts = dict(re.findall(r"^## (.*?)\n\n(.*?)(?=\n## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert tuple(parts) == RECIPES
    assert all(len(text.strip().splitlines()) <= 10 for text in parts.values())


def test_every_environment_exists() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    named = set(re.findall(r"tox run -e (\w+)", PAGE))
    assert named == {"quick", "verify", "test", "nightly", "lint", "types", "docs", "prove", "mutate", "triton"}
    assert all(tox.has_section(f"testenv:{name}") for name in named)


def test_every_file_and_module_exists() -> None:
    for name in re.findall(r"`((?:impls|properties|tests)/[\w./]+)`", PAGE):
        assert (ROOT / name).exists() or "THEME" in name, name
    for name in re.findall(r"python -m (benchmarks\.\w+)", PAGE):
        assert (ROOT / f"{name.replace('.', '/')}.py").exists(), name


def test_the_architecture_names_every_room() -> None:
    """Every file of a room's line is in the room, and every folder of ``properties`` has a line."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) < 80
    lines = re.findall(r"^\| `([\w/.]+)` \| (.*) \|$", page, re.MULTILINE)
    for place, says in lines:
        assert (ROOT / place).exists(), place
        for name in re.findall(r"(?<![\w/])\w+(?:\.py|\.toml|/)(?!\w)", says):
            assert (ROOT / place / name).exists(), f"{place}/{name}"
    rooms = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "properties").rglob("__init__.py")}
    assert rooms - {"properties", "properties/engine"} <= {place for place, _ in lines}
    assert len(dict(lines)) == len(lines) > 20


# ------------------------------------------------------------ what goes wrong, in one sentence


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("property rows_sum_to_one --theme softmax", "rows_sum_to_one is taken: attention/softmax.py has one already"),
        ("property mine --theme softmaxes", "there is no theme 'softmaxes'; did you mean 'softmax'?"),
        ("property mine --theme elsewhere", "there is no theme 'elsewhere'; --contract NAME begins one"),
        ("property mine --theme elsewhere --contract nobody", "there is no contract 'nobody'; there are attention, "),
        ("property mine", "a property belongs to a theme: give --theme, one of "),
        ("property 2nd-try --theme softmax", "'2nd-try' is no name: small letters, digits and underscores make one, such as '_2nd_try'"),
        ("property class --theme softmax", "'class' is no name: small letters, digits and underscores make one, such as 'class_'"),
        ("property … --theme softmax", "'…' is no name: small letters, digits and underscores make one, such as 'rows_sum_to_one'"),
        ("property mine --theme 2nd --contract packed", "'2nd' is no name: "),
        ("property mine --theme slopes", "3 themes are called 'slopes': say with --contract which, multihead or block or module"),
        ("property mine --theme slopes --contract packed", "the theme 'slopes' is about multihead and block and module, not 'packed'"),
        ("property mine --theme select --contract packed", "'select' is a name of properties/catalogue.py already: "),
        (
            "mutant mine --theme causal --killed-by caches",
            "cached_decoding_is_one_pass is not put to mutants in impls/mutants/attention/causal.py",
        ),
        (
            "mutant mine --theme causal --killed-by rows_sum_to_one --contract packed",
            "rows_sum_to_one is not put to mutants of packed in impls/mutants/attention/causal.py: give another --theme or --killed-by",
        ),
        ("mutant mine --theme causal", "a mutant names the property that must catch it: give --killed-by"),
        ("mutant mine --theme casual --killed-by rows_sum_to_one", "a mutant belongs to a theme of impls/mutants: give --theme, one of "),
        ("mutant mine --theme causal --killed-by rows_sum_to_two", "no property is named 'rows_sum_to_two'; did you mean rows_sum_to_one"),
        ("mutant one_too_far --theme causal --killed-by rows_sum_to_one", "one_too_far is taken: attention/causal.py has one already"),
        ("contract pack", "there is a contract 'pack' already: take another name"),
        ("contract mine --theme softmax", "there is a theme 'softmax' already: give another with --theme"),
    ],
)
def test_errors_of_new_are_one_sentence(
    arguments: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from properties.engine.doors.cli import main

    monkeypatch.chdir(ROOT)
    before = {path: path.read_bytes() for path in (*ROOT.glob("properties/*/*.py"), *ROOT.glob("impls/mutants/*/*.py"))}
    assert main(["new", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"attncheck: {says}") and said.count("\n") == 1
    assert before == {path: path.read_bytes() for path in (*ROOT.glob("properties/*/*.py"), *ROOT.glob("impls/mutants/*/*.py"))}


def test_new_outside_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from properties.engine.doors.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["new", "contract", "mine"]) == 2
    assert capsys.readouterr().err.startswith("attncheck: this is no clone of attncheck: run it in one")


# ------------------------------------------------------------ the recipes


def checked(run: Run, target: str, *more: str, status: int = 0) -> str:
    return run("properties", target, "--cases", "5", *more, status=status).stdout


@pytest.mark.nightly
def test_a_property(tree: Path, run: Run) -> None:
    made = run("properties", "new", "property", "rows_of_a_pack_are_finite", "--theme", "packed")
    assert made.stdout.startswith("properties/pack/packed.py: rows_of_a_pack_are_finite\n")
    assert "TODO: the claim" in checked(run, "packed_numpy.attention", "--property", "rows_of_a_pack_are_finite", status=1)
    replaced(
        tree / "properties/pack/packed.py",
        ("TODO: the formula", "out = out"),
        ("TODO: what must be true, in one sentence.", "Every number that comes out is finite."),
        (
            '    t.fail("TODO: the claim, such as t.same_bits(…), t.close(…) or t.inside(…)")',
            '    out = t.run_pack().out\n    t.same_bits(np.isfinite(out), np.ones(out.shape), "row {row} is not finite")',
        ),
    )
    assert "1 property holds, 0 refuted" in checked(run, "packed_numpy.attention", "--property", "rows_of_a_pack_are_finite")
    run("properties", "new", "property", "opened", "--theme", "openings", "--contract", "packed")
    assert "opened" in run("properties", "list", "--property", "openings").stdout


@pytest.mark.slow
def test_a_mutant(tree: Path, run: Run) -> None:
    pytest.importorskip("torch")
    run("properties", "new", "mutant", "never_causal", "--theme", "causal", "--killed-by", "future_tokens_are_ignored")
    replaced(
        tree / "impls/mutants/attention/causal.py",
        ("TODO: the mistake in one line", "is_causal is taken and forgotten"),
        ("TODO: owner/repo#123, or teaching code", "teaching code"),
        (
            "return attention(q, k, v, **options)  # TODO: with one step replaced",
            "return attention(q, k, v, **options | {'is_causal': False})",
        ),
    )
    assert "1 passed" in run("pytest", "-q", "-p", "no:cacheprovider", "tests/impls/test_mutants.py", "-k", "never_causal").stdout


@pytest.mark.slow
def test_an_implementation(tree: Path, run: Run) -> None:
    (tree / "impls" / "ten_lines.py").write_text('"""The formula in ten lines."""\n' + ATTENTION, encoding="utf-8")
    replaced(
        tree / "impls" / "catalogue.py",
        (
            "CATALOGUE: tuple[Entry, ...] = (\n",
            'CATALOGUE: tuple[Entry, ...] = (\n    Entry("ten_lines.attention", "ten_lines:attention", "attention", (), "ten lines"),\n',
        ),
    )
    assert "NOTHING FOUND  ten_lines.attention" in checked(run, "ten_lines.attention", "--property", "causality")


@pytest.mark.nightly
def test_a_contract(tree: Path, run: Run) -> None:
    run("properties", "new", "contract", "gated_unit")
    (tree / "units.py").write_text(
        "def right(x):\n    return x\n\n\ndef wrong(x):\n    return x + 1\n\n\n"
        'right.supports = wrong.supports = {"contract": "gated_unit"}\n',
        encoding="utf-8",
    )
    assert "1 property holds, 0 refuted" in checked(run, "units.py:right", "--property", "gated_units")
    assert "REFUTED  gated_unit_is_inside_the_bound" in checked(run, "units.py:wrong", status=1)
    assert "length=17" in run("properties", "explain", "Case(length=17)", "--contract", "gated_unit").stdout
    rule = run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_architecture.py", "-k", "gated or broken or names or contracts")
    assert " passed" in rule.stdout


@pytest.mark.slow
def test_a_framework(tree: Path, run: Run) -> None:
    (tree / "properties/engine/frameworks/plain.py").write_text(
        '''"""Arrays of a library that is NumPy under another name."""

import numpy as np

from .numpy import NumpyFramework


class Plain(np.ndarray):
    """Its arrays."""


class PlainFramework(NumpyFramework):
    name, dtypes = "plain", ("float64", "float32")

    def full(self, shape, value, dtype, device):
        return np.full(shape, value, dtype=dtype).view(Plain)

    def is_array(self, value):
        return isinstance(value, Plain)


FRAMEWORK = PlainFramework
''',
        encoding="utf-8",
    )
    (tree / "kernel.py").write_text(ATTENTION.replace('"framework": "numpy"', '"framework": "plain"'), encoding="utf-8")
    assert "kernel.py:attention · plain · cpu · float64" in checked(run, "kernel.py:attention", "--property", "causality")
