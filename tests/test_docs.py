"""The pages of docs/: every file is written, every command is run, every block of Python, too; the reference is complete; the site is built.

Here ``attncheck`` is this clone under its installed name: what only an installed wheel can show, tests/test_wheel.py shows.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from executed import blocks, commands, missing, walk
from installed import ROOT, Installed
from nightly import some_by_night

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.name != "findings.md")


@pytest.fixture(scope="module")
def attncheck(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The clone as the namespace ``attncheck``, with its console script and its pytest plugin."""
    target = tmp_path_factory.mktemp("installed")
    (target / "attncheck-0.dist-info").mkdir()
    (target / "attncheck-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: attncheck\nVersion: 0\n")
    (target / "attncheck-0.dist-info" / "entry_points.txt").write_text("[pytest11]\nproperties.plugin = attncheck.properties.plugin\n")
    (target / "attncheck").mkdir()
    for name in ("impls", "properties"):
        (target / "attncheck" / name).symlink_to(ROOT / name)
    script = target / "bin" / "attncheck"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom attncheck.properties.__main__ import entry\n\nif __name__ == '__main__':\n    entry()\n")
    script.chmod(0o755)
    return Installed(ROOT, target, target)


@pytest.mark.parametrize(
    "page",
    some_by_night(PAGES, [DOCS / "how-to" / "deviations.md"]),  # and all by tox run -e docs
    ids=lambda path: str(path.relative_to(DOCS)),
)
def test_a_page_runs(page: Path, attncheck: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    if page.name == "contained.md" and sys.platform != "linux":
        pytest.skip("needs Linux")
    for command, status, out, errors in walk(page.read_text(encoding="utf-8"), attncheck, tmp_path):
        assert status == command.status, f"$ {command.text}\n{out}{errors}"
        gone = missing(command.shown, out.splitlines())
        assert gone is None, f"$ {command.text}\nthe page shows\n{gone}\nbut this is printed:\n{out}"


def test_every_block_is_one_that_is_run_or_known_not_to_be() -> None:
    kinds = {block.kind for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))}
    assert kinds == {"python", "console", "toml", "yaml"}
    assert sum(len(commands(b.body)) for page in PAGES for b in blocks(page.read_text(encoding="utf-8")) if b.kind == "console") >= 12


# ---------------------------------------------------------------- what pages say of the code


def test_themes_and_their_number_of_properties() -> None:
    from properties.catalogue import PROPERTIES

    told = re.findall(r"^\| (\w+) \| (\d+) \|", (DOCS / "explanation" / "attention.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [(theme, int(number)) for theme, number in told] == list(Counter(prop.theme for prop in PROPERTIES.values()).items())


def test_the_deviations_are_real_ones() -> None:
    page = (DOCS / "how-to" / "deviations.md").read_text(encoding="utf-8")
    shown = [tomllib.loads(block.body)["deviation"][0] for block in blocks(page) if block.kind == "toml" and not block.name]
    real = tomllib.loads((ROOT / "impls" / "deviations.toml").read_text(encoding="utf-8"))["deviation"]
    assert len(shown) == 2
    for entry in shown:
        assert any(entry.items() <= other.items() for other in real)


# ---------------------------------------------------------------- the reference


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("reference_pages", DOCS / "reference_pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


def test_the_reference_has_everything(reference: dict[str, str]) -> None:
    import dataclasses

    import properties
    from properties.catalogue import PROPERTIES
    from properties.engine.core.supports import Supports

    page = reference["reference/properties.md"]
    assert all(f"### `{name}`" in page and prop.formula in page and prop.statement in page for name, prop in PROPERTIES.items())
    assert "* causal frontier one too far: a query sees the next token (RVC-Boss/GPT-SoVITS#965)" in page
    keys = {key: (default, meaning) for key, default, _, meaning in rows(reference["reference/supports.md"])}
    assert list(keys) == [field.name for field in dataclasses.fields(Supports)]
    assert all(default and meaning for default, meaning in keys.values())
    assert keys["zero_sizes"][0] == "`true`" and keys["causal"][0] == '`"top-left"`' and "PyTorch does" in keys["mask_rank"][1]
    assert all(f"### `{name}`" in reference["reference/python.md"] for name in properties.__all__)
    for word in ("--html FILE", "attncheck show", "--text TEXT", "attncheck explain"):
        assert word in reference["reference/commands.md"], word
    for key in ("reports[].properties.NAME.finding.pictures[].panels[].expected", "reports[].features", "not_run"):
        assert f"| `{key}` |" in reference["reference/json.md"], key
    assert "a tile ends here" in reference["reference/cases.md"]


def rows(page: str) -> list[list[str]]:
    """Of the tables of a page whose first cell is code: its name and the other cells."""
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    return [
        [cell.strip().strip("`") if at == 0 else cell.strip() for at, cell in enumerate(line.strip("|").split(" | "))] for line in lines
    ]


def test_every_option_is_explained(reference: dict[str, str]) -> None:
    usage = reference["reference/commands.md"].split("## `")[1].split("options:")[1].split("exit status")[0]
    told = dict(re.findall(r"^  (-\S.*?)(?:  |\n {20,})(.*)$", usage, re.MULTILINE))
    assert len(told) == len(re.findall(r"^  -", usage, re.MULTILINE)) > 20
    assert all(len(words.split()) > 2 for words in told.values()), told


def test_options_that_pages_name_exist(reference: dict[str, str]) -> None:
    known = set(re.findall(r"(?<![\w-])--[a-z-]+", reference["reference/commands.md"])) | {
        "--pdb",
        "--pyargs",
        "--attncheck-strict",
        "--attncheck-in-process",
    }  # those are of pytest
    named = {option for page in PAGES for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+(?![a-z…-])", page.read_text(encoding="utf-8"))}
    assert {"--html", "--text", "--theme", "--case"} <= named <= known, named - known


def test_every_public_name_says_what_it_takes_and_raises(reference: dict[str, str]) -> None:
    import properties

    for name in properties.__all__:
        doc = getattr(properties, name).__doc__
        assert doc and re.search("[Rr]aises", doc), name


@pytest.mark.slow
def test_the_site_is_built(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "explanation" / "conventions" / "index.html").exists() and (
        tmp_path / "reference" / "properties" / "index.html"
    ).exists()
    loaded = re.findall(
        r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\"\s>]+)", (tmp_path / "index.html").read_text(encoding="utf-8")
    )
    assert [place for place in loaded if "canonical" not in place] == []
