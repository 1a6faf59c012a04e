"""The page of a run: what it shows, that it loads nothing, and that it can be read without eyes or mouse."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page import Element, faults, read

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from impls import numpy_matmul
from properties import catalogue
from properties.engine.core.picture import CELLS, PANELS, Compared, pictured
from properties.engine.doors import cli
from properties.engine.doors.cli import main
from properties.engine.report import draw, html
from properties.engine.report.as_json import picture_json, report_json
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report
from properties.engine.search.search import Outcome

KERNEL = """
import numpy as np

def weights(q, k, is_causal, diagonal):
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    if is_causal:
        logits = np.where(np.tri(*logits.shape[2:], k=diagonal, dtype=bool), logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits - top)
    return weights / weights.sum(axis=-1, keepdims=True)

def right(q, k, v, is_causal=False):
    return weights(q, k, is_causal, 0) @ v

def future(q, k, v, is_causal=False):
    return weights(q, k, is_causal, 1) @ v

def raises(q, k, v, is_causal=False):
    if is_causal and k.shape[2] > 6:
        raise ValueError("<script>alert('more than six')</script> & so on")
    return right(q, k, v, is_causal)

for function in (right, future, raises):
    function.supports = {"zero_sizes": False, "dtypes": ["float64"]}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(page, JSON, text) of one run, made once."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "kernel.py").write_text(KERNEL)
    made: dict[tuple[str, ...], tuple[str, Any]] = {}

    def run_once(*arguments: str) -> tuple[str, Any]:
        if arguments not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                patch.setattr(cli, "known_mistakes", lambda missing=None: [])  # readings cost seconds
                assert main([*arguments, "--cases", "20", "--json", "run.json", "--html", "run.html", "-q"]) in (0, 1)
            page = (folder / "run.html").read_text(encoding="utf-8")
            made[arguments] = page, json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return made[arguments]

    return run_once


FUTURE = ("kernel.py:future", "--property", "causality", "--property", "rows_sum_to_one")
RIGHT = ("kernel.py:right", "--property", "causality", "--property", "masks")
SEVERAL = ("numpy_matmul.*", "--property", "rows_sum_to_one", "--property", "causality")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("arguments", [FUTURE, RIGHT, SEVERAL], ids=["refuted", "nothing found", "several targets"])
def test_a_page_is_whole_and_loads_nothing(run: Any, arguments: tuple[str, ...]) -> None:
    page, _ = run(*arguments)
    assert read(page)[0].all("html") and faults(page) == []
    assert not re.search(r"url\((?!#)|@import|fetch\(|https?://(?!www\.w3\.org)", page)


BROKEN = {
    "<p><b></p></b>": "</p> closes <b>",
    '<i id="a"></i><i id="a"></i>': "two elements have the id a",
    '<a href="#b">b</a>': "a link leads to #b, which is nowhere",
    '<img src="https://x.org/a.png">': "<img> loads https://x.org/a.png",
    "<button></button>": "a <button> has no name",
    "<table><tr><th>a</th></tr></table>": "a header cell heads nothing: a",
    '<div class="scroll"></div>': "what scrolls cannot be reached by keyboard",
    "<h1>a</h1><h3>b</h3>": "a heading of level 3 follows one of level 1",
    '<p onclick="a()">b</p>': "<p> has a handler of its own",
    '<table><tr><th scope="col">a</th></tr><tr><td>b</td><td>c</td></tr></table>': "a row of 2 cells in a table of 1: b c",
}


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_wrong_with_a_page_is_found(text: str) -> None:
    assert BROKEN[text] in faults(text)


def test_the_verdict_comes_first(run: Any) -> None:
    page, _ = run(*FUTURE)
    (main_part,) = read(page)[0].all("main")
    assert main_part.text.startswith("REFUTED kernel.py:future")
    assert "1 of the" not in main_part.all("p", "lead")[0].text and "do not hold" in main_part.all("p", "lead")[0].text
    page, _ = run(*RIGHT)
    (main_part,) = read(page)[0].all("main")
    assert main_part.text.startswith("NOTHING FOUND kernel.py:right All 3 properties that could be tried hold.")
    assert not main_part.all("details", "finding")


def test_a_convention_that_is_wrong_is_told_first(run: Any) -> None:
    _, data = run(*RIGHT)
    wrong = {**data["reports"][0], "verdict": "REFUTED", "ok": False, "wrong": {"causal corner": "bottom-right for <L> and S"}}
    part = html.report_part(wrong)
    assert faults(part) == [] and "<L>" not in part
    text = read(part)[0].text
    assert "1 convention is other than documented" in text and "wrong causal corner : bottom-right for <L> and S" in text


def finding(page: str, name: str) -> Element:
    found = [e for e in read(page)[0].all("details", "finding") if e.all("strong")[0].text == name]
    assert len(found) == 1
    return found[0]


def test_a_finding_is_told_in_full_and_its_replay_line_replays(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, data = run(*FUTURE)
    told = data["reports"][0]["properties"]["future_tokens_are_ignored"]
    shown = finding(page, "future_tokens_are_ignored")
    assert told["finding"]["line"] in shown.text and told["statement"] in shown.text and told["finding"]["case"] in shown.text
    (line,) = (e for e in shown.walk() if e.attributes.get("id", "").startswith("replay-"))
    assert line.text == told["finding"]["replay"]
    assert shown.all("button")[0].attributes["data-copy"] == line.attributes["id"]
    (tmp_path / "kernel.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line.text.removeprefix("python -m properties"))) == 1


def test_a_reading_is_told(run: Any) -> None:
    _, data = run(*FUTURE)
    told = {**data["reports"][0]["properties"]["future_tokens_are_ignored"], "property": "future_tokens_are_ignored"}
    known = {
        "name": "mutants.a",
        "mistake": "one too far",
        "resembles": True,
        "but_not_on": "Case(keys=3)",
        "but_not_by": "rows_sum_to_one",
        "on_larger_cases": True,
        "explains": 3,
    }
    part = html.finding_part(
        {**told, **told["finding"], "readings": [known, {**known, "name": "mutants.b", "but_not_on": None, "explains": 1}]}
    )
    assert faults(part) == []
    assert (
        "resembles “one too far” ( mutants.a ), as in 2 more of the findings; "
        "not quite: rows_sum_to_one refutes that mistake, and not the target, on Case(keys=3) or "
        "“one too far” ( mutants.b )"
    ) in read(part)[0].text


def test_what_a_target_says_is_text(run: Any) -> None:
    page, _ = run("kernel.py:raises", "--property", "causality")
    assert "<script>alert(" not in page
    assert "<script>alert('more than six')</script> & so on" in read(page)[0].text
    assert faults(page) == []


def test_the_weights_of_a_frontier_one_too_far(run: Any) -> None:
    """The picture of the larger case outlines the keys one after the diagonal, and the row that they share."""
    _, data = run(*FUTURE)
    pictures = data["reports"][0]["properties"]["future_tokens_are_ignored"]["finding"]["pictures"]
    (weights,) = [p for p in pictures if p["title"] == "attention weights" and len(p["panels"][0]["rows"]) == 6]
    (panel,) = weights["panels"]
    actual, expected, wrong = (np.array(panel[name], dtype=float) for name in ("actual", "expected", "wrong"))
    assert (weights["row"], weights["column"]) == ("query", "key") and actual.shape == (6, 9)
    i, j = np.indices(actual.shape)
    assert (expected[j > i] == 0).all() and (actual[j == i + 1] > 0).all() and (actual[j > i + 1] == 0).all()
    assert np.allclose(actual.sum(axis=1), 1) and np.allclose(expected.sum(axis=1), 1)
    assert (wrong == (j <= i + 1)).all()


def test_themes_coverage_and_holes(run: Any) -> None:
    page, data = run(*RIGHT)
    report = data["reports"][0]
    table = html.coverage(report)
    counted = {feature: sum(counts) for feature, counts in table["rows"]}
    for feature, count in counted.items():
        assert count == sum(p["features"].get(feature, 0) for p in report["properties"].values())
    assert counted["causal"] > 0 and table["holes"] == [feature for feature, count in counted.items() if not count]
    assert table["holes"], "so few cases leave some out"
    assert not any(feature.startswith(("gradient", "mask")) for feature in counted), "of which no property that was tried is about"
    text = read(page)[0].text
    assert f"Never: {', '.join(table['holes'])}." in text
    assert "the target takes no attn_mask" in text  # masks, not exercised
    assert html.theme_context("masks", {n: p for n, p in report["properties"].items() if p["theme"] == "masks"})["state"] == "not exercised"


def test_a_matrix_of_several_targets(run: Any) -> None:
    page, data = run(*SEVERAL)
    (matrix,) = html.matrices(data["reports"])
    assert matrix["targets"] == [report["target"] for report in data["reports"]] and len(matrix["targets"]) > 1
    assert len(matrix["rows"]) == 5 and all(len(cells) == len(matrix["targets"]) for _, _, cells in matrix["rows"])
    assert "targets, " in read(page)[0].all("h1")[0].text


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_the_extra_it_says_so_at_once(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("html", "draw"):
        monkeypatch.delitem(sys.modules, f"properties.engine.report.{name}")
        monkeypatch.delattr(f"properties.engine.report.{name}")
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["numpy_matmul.attention", "--html", "page.html"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("attncheck: pages and pictures need Jinja2 and matplotlib") and errors.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


# ---------------------------------------------------------------- pictures


def compared(shape: tuple[int, ...], *wrong: tuple[int, ...]) -> Compared:
    """Random numbers, of which some are off by one."""
    expected = np.random.default_rng(0).normal(size=shape)
    hit = np.zeros(shape, dtype=bool)
    for at in wrong:
        hit[at] = True
    return Compared(expected + hit, expected, np.full(shape, 1e-9), hit)


def test_a_picture_shows_the_wrong_matrices_around_the_worst_element() -> None:
    made = pictured("out", "it is off", compared((2, 3, 100, 4), (1, 2, 90, 1)))
    assert made is not None
    (panel,) = made.panels
    assert panel.where == "batch 1, head 2" and 90 in panel.rows and len(panel.rows) == CELLS and panel.columns == (0, 1, 2, 3)
    assert panel.values.wrong[panel.rows.index(90), 1] and panel.values.wrong.sum() == 1
    assert "5 of 6 matrices are right" in made.left_out and f"the {CELLS} rows" in made.left_out


def test_of_many_wrong_matrices_the_worst_are_shown() -> None:
    values = compared((1, PANELS + 2, 2, 2), *((0, head, 0, 0) for head in range(PANELS + 2)))
    values.actual[0, PANELS + 1, 0, 0] = np.nan
    made = pictured("out", "it is off", values)
    assert made is not None and len(made.panels) == PANELS
    assert made.panels[0].where == f"batch 0, head {PANELS + 1}" and made.left_out.startswith("2 more matrices are wrong")


@pytest.mark.parametrize("shape", [(), (1,), (2, 0), (1, 1, 1, 1)])
def test_a_single_number_is_no_picture(shape: tuple[int, ...]) -> None:
    assert pictured("out", "it is off", compared(shape)) is None


def test_a_picture_is_a_figure_with_a_name_and_ids_of_its_own() -> None:
    values = compared((3, 4), (0, 0), (0, 1))
    values.actual[2, 3] = np.nan
    made = pictured("out", "row 0 is off & more", values)
    assert made is not None
    data = json.loads(json.dumps(picture_json(made)))  # as a file has it
    one, two = draw.heatmaps(data), draw.heatmaps(data)
    assert faults(one + two) == []
    (svg,) = read(one)[0].all("svg")
    assert svg.attributes["aria-label"] == "row 0 is off & more" and "currentColor" in one and draw.INK not in one
    assert {"expected", "actual", "nan"} <= {e.text for e in svg.all("text")}
    assert draw.WRONG in one and draw.WRONG not in draw.heatmaps(picture_json(pictured("out", "", compared((3, 4)))))  # type: ignore[arg-type]


def test_outlines_run_between_right_and_wrong() -> None:
    class Axis:
        def plot(self, x: Any, y: Any, **how: Any) -> None:
            ends = np.stack([x, y], axis=1).reshape(-1, 3, 2)  # from, to, and a pen that is lifted
            self.lines = {(tuple(one), tuple(other)) for one, other, _ in ends.tolist()}

    axis = Axis()
    draw._outline(axis, np.array([[True, True], [False, False]]))
    assert axis.lines == {
        *(((j - 0.5, i), (j + 0.5, i)) for j in (0, 1) for i in (-0.5, 0.5)),
        *(((j, -0.5), (j, 0.5)) for j in (-0.5, 1.5)),
    }


def test_one_case_is_no_plural() -> None:
    target = make_target("right", numpy_matmul.attention, {"framework": "numpy"})
    (prop,) = catalogue.select(("rows_sum_to_one",))
    for count, said in ((1, "1</strong> case<"), (2, "2</strong> cases<")):
        shown = html.report_part(report_json(Report(target, "cpu", {prop.name: Outcome(prop, "right", cases=count)})))
        assert said in shown and f"1 of 1 properties, {count} case{'s' * (count > 1)}:" in " ".join(shown.split())
