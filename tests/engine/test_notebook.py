"""What shows itself in a notebook; and docs/tour.ipynb, cell by cell."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page import faults, read

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from properties.attention.case import Case
from properties.engine.doors import checks
from properties.exact import oracle

TOUR = Path(__file__).parents[2] / "docs" / "tour.ipynb"


def cells() -> list[str]:
    """The code of the notebook, as it is written in a clone."""
    notebook = json.loads(TOUR.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4 and not any(cell.get("outputs") for cell in notebook["cells"])
    return ["".join(c["source"]).replace("attncheck.properties", "properties") for c in notebook["cells"] if c["cell_type"] == "code"]


def run(code: str, names: dict[str, Any]) -> Any:
    """The value of the last line of a cell, if it is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(TOUR), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(TOUR), "eval"), names) if last else None  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def shown() -> list[Any]:
    """What each cell of the notebook shows; the targets cannot be called any more, and are not to be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "known_mistakes", lambda: [])  # readings cost seconds
        names: dict[str, Any] = {"__name__": "__main__"}
        values = [run(code, names) for code in cells()]
    object.__setattr__(values[0].report.target, "function", None)  # a call would raise
    return values


def test_the_notebook_shows_pages(shown: list[Any]) -> None:
    pages = [value._repr_html_() for value in shown if value is not None]
    assert [type(value).__name__ for value in shown] == ["Verdict", "Finding", "Case", "Exact", "NoneType"]
    for page in pages:
        assert faults(page) == [] and "http" not in page.replace("http://www.w3.org", "")
    assert repr(shown[0]).count("REFUTED")
    verdict, finding, case, exact = (read(page)[0] for page in pages)
    assert "REFUTED attention" in verdict.text and "Findings" in verdict.text and "What was verified" in verdict.text
    assert "future_tokens_are_ignored" in finding.text and "row 0 changed" in finding.text
    assert len(finding.all("svg")) >= 2, "weights of the smallest case, and of a larger one"
    assert "the future must not be seen" in case.text
    assert {"batch 0, head 0", "batch 0, head 1"} <= {e.text for e in exact.all("text")}


def test_without_the_extra_it_prints_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("html", "draw"):
        monkeypatch.delitem(sys.modules, f"properties.engine.report.{name}", raising=False)
    monkeypatch.delattr("properties.engine.report.html", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert Case(keys=3)._repr_html_() is None and repr(Case(keys=3)) == "Case(keys=3)"


def test_a_case_says_why_and_escapes() -> None:
    page = Case(keys=17, scale=0.0, edits=(("q", 0, float("nan")),))._repr_html_()
    assert page is not None and faults(page) == []
    text = read(page)[0].text
    assert "keys = 17" in text and "a tile ends here" in text and "`scale or default` takes 0 for none" in text
    assert "every field has its default value" in read(Case()._repr_html_() or "")[0].text


def test_an_exact_answer_without_a_key_has_nothing_to_draw() -> None:
    none = np.zeros((1, 1, 0, 4))
    page = oracle.solve(oracle.Problem(np.zeros((1, 1, 2, 4)), none, none, 1.0))._repr_html_()
    assert page is not None and faults(page) == [] and not read(page)[0].all("svg")
