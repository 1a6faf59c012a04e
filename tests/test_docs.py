"""The pages of docs/: every file is written, every command is run, every block of Python, too; the reference is complete; the site is built.

Here ``attncheck`` is this clone under its installed name: what only an installed wheel can show, tests/test_wheel.py shows.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from executed import blocks, commands, missing, walk
from installed import ROOT, Installed

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.name != "findings.md")
NOT_RUN = ("pairs.md", "contained.md")  # they show commands on files that they do not have
RUN = [path for path in PAGES if path.name not in NOT_RUN]


@pytest.fixture(scope="module")
def attncheck(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The clone as the namespace ``attncheck``, with its console script."""
    target = tmp_path_factory.mktemp("installed")
    (target / "attncheck").mkdir()
    for name in ("impls", "properties"):
        (target / "attncheck" / name).symlink_to(ROOT / name)
    script = target / "bin" / "attncheck"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nfrom attncheck.properties.engine.doors.cli import entry\n\nif __name__ == '__main__':\n    entry()\n"
    )
    script.chmod(0o755)
    return Installed(ROOT, target, target)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_runs(page: Path, attncheck: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    for command, status, out, errors in walk(page.read_text(encoding="utf-8"), attncheck, tmp_path):
        assert status == command.status, f"$ {command.text}\n{out}{errors}"
        gone = missing(command.shown, out.splitlines())
        assert gone is None, f"$ {command.text}\nthe page shows\n{gone}\nbut this is printed:\n{out}"


def test_every_block_is_one_that_is_run_or_known_not_to_be() -> None:
    kinds = {block.kind for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))}
    assert kinds == {"python", "console", "toml", "yaml"}
    assert sum(len(commands(b.body)) for page in PAGES for b in blocks(page.read_text(encoding="utf-8")) if b.kind == "console") >= 12


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
    assert all(f"| `{field.name}` |" in reference["reference/supports.md"] for field in dataclasses.fields(Supports))
    assert all(f"### `{name}`" in reference["reference/python.md"] for name in properties.__all__)
    for word in ("--html FILE", "attncheck show", "--text TEXT", "attncheck explain"):
        assert word in reference["reference/commands.md"], word
    for key in ("reports[].properties.NAME.finding.pictures[].panels[].expected", "reports[].features", "not_run"):
        assert f"| `{key}` |" in reference["reference/json.md"], key
    assert "a tile ends here" in reference["reference/cases.md"]


def test_options_that_pages_name_exist(reference: dict[str, str]) -> None:
    known = set(re.findall(r"(?<![\w-])--[a-z-]+", reference["reference/commands.md"]))
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
