"""The page in a real browser: `tox run -e page`, where playwright, axe-core and a Chromium of the system are.

What a browser computes, its styles, its contrasts, its focus, no test without one can see.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
axe = pytest.importorskip("axe_core_python")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium is installed", allow_module_level=True)

from playwright.sync_api import sync_playwright

from properties.engine.doors import cli

KERNEL = """
import numpy as np

def attention(q, k, v, is_causal=False):
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    if is_causal:
        logits = np.where(np.tri(*logits.shape[2:], k=1, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v

attention.supports = {"zero_sizes": False, "dtypes": ["float64"]}
"""
AXE = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
OPENED = "() => document.querySelectorAll('details').forEach(one => { one.open = true; })"
VIOLATIONS = "async () => (await axe.run()).violations.map(v => `${v.impact} ${v.id}: ${v.nodes[0].html}`)"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    (folder / "kernel.py").write_text(KERNEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(cli, "known_mistakes", lambda missing=None: [])
        arguments = ["--property", "causality", "--property", "softmax", "--property", "masks", "--cases", "20", "--html", "run.html"]
        assert cli.main(["kernel.py:attention", *arguments]) == 1
    return folder / "run.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def shown(browser: Any, file: Path, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """The page, and what goes wrong or is asked of a network."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, trouble = context.new_page(), []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: trouble.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    return page, trouble


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_nothing_overflows_nothing_complains_and_axe_finds_nothing(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    page, trouble = shown(browser, page_file, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(OPENED)
    page.evaluate(f"{AXE}; 0")
    assert page.evaluate(VIOLATIONS) == []
    assert trouble == []
    page.context.close()


def test_axe_can_find_something(browser: Any, page_file: Path) -> None:
    page, _ = shown(browser, page_file)
    page.evaluate(f"document.querySelector('main').insertAdjacentHTML('afterbegin', '<p style=\"color: #ccc\">pale</p>'); {AXE}; 0")
    assert [found.split(":")[0] for found in page.evaluate(VIOLATIONS)] == ["serious color-contrast"]
    page.context.close()


def test_the_copy_button_copies_the_replay_line(browser: Any, page_file: Path) -> None:
    page, trouble = shown(browser, page_file)
    button = page.locator("details.finding button").first
    line = page.locator("details.finding .replay code").first.inner_text()
    button.click()
    page.wait_for_function("document.querySelector('details.finding button').textContent === 'copied'")
    assert page.evaluate("navigator.clipboard.readText()") == line and "--property" in line
    assert page.locator("[role=status]").inner_text() == "The replay line is copied"
    assert trouble == []
    page.context.close()


def test_the_theme_button_goes_round(browser: Any, page_file: Path) -> None:
    page, _ = shown(browser, page_file, scheme="light")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    seen = [page.evaluate(paper)]
    for _ in range(3):
        page.locator("#theme").click()
        seen.append(page.evaluate(paper))
    white, dark = "rgb(255, 255, 255)", "rgb(13, 17, 23)"
    assert seen == [white, white, dark, white]  # auto, light, dark, auto
    page.context.close()


def test_by_keyboard_alone(browser: Any, page_file: Path) -> None:
    """The first stop leads past the head of the page; a finding folds at a key; every finding and what scrolls can be reached."""
    page, _ = shown(browser, page_file)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    before = page.evaluate("document.activeElement.parentElement.open")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") is not before
    page.context.close()


def test_a_link_unfolds_the_finding_that_it_leads_to(browser: Any, page_file: Path) -> None:
    page, _ = shown(browser, page_file)
    page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = false; })")
    name = page.evaluate("document.querySelectorAll('details.finding')[1].id")
    page.evaluate("name => { location.hash = name; }", name)
    page.wait_for_function("name => document.getElementById(name).open", arg=name)
    page.context.close()
