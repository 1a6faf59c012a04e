"""Known deviations are data: a small language of conditions, cases set aside and counted, and nothing gone unnoticed."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known import HERE, Kernel, deviation, target, written

from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.doors.checks import DeviationCheck
from properties.engine.doors.cli import main
from properties.engine.search.deviations import Deviation, read_deviations
from properties.engine.search.probe import make_target
from properties.engine.search.run import look_again, verify_target
from properties.engine.search.search import Plan, search

SUMS = PROPERTIES["rows_sum_to_one"]
CASE = Case(queries=4, keys=6, dim=3, group=2, is_causal=True, scale=-0.5, mask="random", edits=(("v", 0, 1.0),))


# ---------------------------------------------------------------- conditions

ALLOWED: dict[str, bool] = {
    "True": True,
    "keys > 5": True,
    "keys >= queries and is_causal": True,
    "keys < queries or not is_causal": False,
    "not is_causal": False,
    "scale is not None and scale <= 0": True,
    "scale is None": False,
    "value_dim is None": True,
    "scale == -0.5": True,
    "mask != 'none' and mask_axes in ('LS', 'S')": True,
    "mask_axes not in ('LS', 'S')": False,
    "heads == 2 and width == 3": True,
    "keys % 4 == 2": True,
    "keys + queries == 10 and keys * queries == 24 and keys - queries == 2": True,
    "dtype == 'float64' and device == 'cpu'": True,
    "edits != ()": True,
    "queries == 4 and keys == 7": False,
}


@pytest.mark.parametrize("when", ALLOWED)
def test_conditions_over_the_fields(when: str) -> None:
    assert deviation(when=when).matches(CASE) is ALLOWED[when]


REFUSED: dict[str, str] = {
    "kees > 2": "a case has no field 'kees'",
    "__class__ == 1": "a case has no field '__class__'",
    "differing": "a case has no field 'differing'",
    "keys ** 9 > 2": "cannot be used in a condition: keys ** 9",
    "keys / 2 == 1": "cannot be used in a condition: keys / 2",
    "len(edits) > 0": "cannot be used in a condition: len(edits)",
    "dtype.upper() == 'X'": "cannot be used in a condition: dtype.upper()",
    "edits[0] == 1": "cannot be used in a condition: edits[0]",
    "1 < keys < 9": "cannot be used in a condition: 1 < keys < 9",
    "[k for k in (1,)]": "cannot be used in a condition: [k for k in (1,)]",
    "lambda: 1": "cannot be used in a condition: lambda: 1",
    "scale <= 0": "the condition 'scale <= 0' makes no sense of Case()",
    "keys % (queries - 1) == 0": "the condition 'keys % (queries - 1) == 0' makes no sense of Case(): ",
    f"keys < 0.5 * 1{'0' * 400}": f"the condition 'keys < 0.5 * 1{'0' * 186}…' makes no sense of Case(): int too large to convert to float",
}


@pytest.mark.parametrize("when", REFUSED)
def test_anything_else_is_refused(when: str) -> None:
    with pytest.raises(ValueError) as caught:
        deviation(when=when).matches(Case())
    assert str(caught.value).startswith(REFUSED[when]) and "\n" not in str(caught.value)


def test_a_file_is_read(tmp_path: Path) -> None:
    (read,) = read_deviations(written(tmp_path / "d.toml", expires=datetime.date(2030, 1, 2)))
    assert read == deviation(properties=("*",), version="numpy 0", expires=datetime.date(2030, 1, 2))
    (tmp_path / "none.toml").write_text("")
    assert read_deviations(tmp_path / "none.toml") == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"when": None}, "the key 'when' is missing"),
        ({"when": "keys >"}, "'keys >' is no condition: invalid syntax"),
        ({"when": "(" * 300}, "…' is no condition: "),
        ({"when": "not " * 10**5 + "is_causal"}, "…' is no condition: it is nested too deeply"),
        ({"when": "not " * 1500 + "is_causal"}, "not …' makes no sense of Case(): maximum recursion depth exceeded"),
        ({"where": "-" * 1500 + "threads < 1"}, "-…' makes no sense: maximum recursion depth exceeded"),
        ({"where": "threads % 0 == 1"}, "the condition 'threads % 0 == 1' makes no sense: "),
        ({"when": "keys > 3"}, "its own case does not match its condition"),
        ({"when": "kees > 3"}, "a case has no field 'kees'"),
        ({"when": "keys > 2 and keys ** 2 > 1"}, "cannot be used in a condition"),
        ({"when": "keys > 2 or scale <= 0"}, "makes no sense of Case()"),
        ({"case": "Case(kees=3)"}, "a case has no field 'kees'"),
        ({"case": "Case(keys=3, values='nrmal')"}, "did you mean 'normal'?"),
        ({"kind": "a bug"}, "kind is 'a bug'; it can be 'library bug' or"),
        ({"version": "2.13"}, "version is '2.13'; it can be a library and its version, such as 'torch 2.13'"),
        ({"fixed": "soon"}, "fixed is 'soon'; it can be a version such as '2.13'"),
        ({"targets": []}, "targets is empty; name one or several"),
        ({"properties": []}, "properties is empty; name one or several"),
        ({"properties": ["softmax", "rows_sum_to_on"]}, "properties names no property: 'softmax'"),
        ({"properties": "rows_sum_to_on"}, "did you mean rows_sum_to_one"),
    ],
)
def test_a_wrong_entry_is_named(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        read_deviations(written(tmp_path / "d.toml", **changes))
    said = str(caught.value)
    assert said.startswith("known deviation 1: ") and says in said and "Error(" not in said and "\n" not in said


def test_names_and_globs() -> None:
    made = deviation(targets=("torch_sdpa.*", "mine"), properties=("rows_*", "output_is_inside_the_bound"))
    assert made.concerns("torch_sdpa.math", "rows_sum_to_one") and made.concerns("mine", "output_is_inside_the_bound")
    assert not made.concerns("torch_mha.train", "rows_sum_to_one") and not made.concerns("mine", "masks_compose")


# ---------------------------------------------------------------- versions and dates

TORCH = torch.__version__.partition("+")[0]
MAJOR, MINOR = TORCH.split(".")[:2]


@pytest.mark.parametrize(
    ("version", "here"),
    [
        (f"torch {TORCH}", True),
        (f"torch {MAJOR}.{MINOR}", True),
        (f"torch {MAJOR}", True),
        ("torch", True),
        (f"torch {MAJOR}.{MINOR[:-1] or 'x'}", False),  # 2.1 is not the beginning of 2.13
        (f"torch {MAJOR}.{MINOR}0", False),
        ("torch 1.13", False),
        ("no-such-library 1", False),
    ],
)
def test_a_version_is_compared_number_by_number(version: str, here: bool) -> None:
    assert deviation(version=version).seen_here() is here


def test_a_date_expires_the_day_after() -> None:
    today = datetime.date.today()
    assert not deviation().expired() and not deviation(expires=today).expired()
    assert deviation(expires=today - datetime.timedelta(days=1)).expired()


# ---------------------------------------------------------------- what a run makes of them


def test_what_matches_leaves_the_search_and_is_counted() -> None:
    plan = Plan(examples=80, deviations=(deviation(),))
    outcome = search(target(), SUMS, plan)
    assert outcome.finding is None and outcome.set_aside > 0
    assert outcome.cases + outcome.set_aside == 80
    assert search(target(), SUMS, Plan(examples=80)).finding is not None
    elsewhere = Plan(examples=80, deviations=(deviation(properties=("masks_*",)), deviation(targets=("other",))))
    assert search(target(), SUMS, elsewhere).finding is not None


def test_a_new_mistake_beside_a_known_one_is_found() -> None:
    """And it shrinks within what is not known: never to a case that is set aside."""
    outcome = search(target(causal=True), SUMS, Plan(examples=150, deviations=(deviation(),)))
    assert outcome.finding is not None
    assert outcome.finding.case.is_causal and outcome.finding.case.keys <= 2


def test_everything_set_aside_is_not_exercised() -> None:
    """A condition that swallows all is no verdict."""
    outcome = search(target(), SUMS, Plan(examples=20, deviations=(deviation(when="True"),)))
    assert (outcome.status, outcome.cases, outcome.set_aside) == ("not exercised", 0, 20)


def test_still_there_gone_and_expired() -> None:
    past = datetime.date(2020, 1, 1)
    assert look_again(deviation(), target()).state == "still there"
    assert look_again(deviation(), target(least=99)).state == "gone"
    assert look_again(deviation(expires=past), target()).state == "expired"
    assert look_again(deviation(expires=past), target(least=99)).state == "gone"


@pytest.mark.parametrize(
    ("changes", "least", "ok"),
    [
        ({}, 3, True),
        ({}, 99, False),  # gone
        ({"version": "numpy 0"}, 99, True),  # gone, and another version: nothing to wonder at
        ({"version": "numpy 0"}, 3, True),
        ({"expires": datetime.date(2020, 1, 1)}, 3, False),
    ],
)
def test_a_run_is_red_when_one_is_gone_or_expired(changes: dict[str, Any], least: int, ok: bool) -> None:
    known = deviation(**changes)
    report = verify_target(target(least=least), [SUMS], Plan(examples=40, deviations=(known,)))
    assert report.ok is ok and not report.findings
    check = DeviationCheck(target(least=least), known)
    if ok:
        check()
    else:
        with pytest.raises(AssertionError, match=r"GONE|EXPIRED"):
            check()


def test_the_stored_case_is_tried_only_where_it_can_be() -> None:
    """A case in float16 says nothing of a target that takes none."""
    double = make_target("kernel", Kernel(), {"framework": "torch", "dtypes": ["float64"]})
    half = deviation(case=Case(keys=3, dtype="float16"))
    report = verify_target(double, [SUMS], Plan(examples=10, deviations=(half,)))
    assert report.statuses == []


FILE = """
import numpy as np
def attention(q, k, v):
    with np.errstate(all="ignore"):
        logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return (weights @ v * (1.01 if k.shape[2] >= LEAST else 1)).astype(q.dtype)
"""


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Known: exit 0 and said. Gone: exit 1 and said. A file that is wrong: exit 2."""
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text(FILE.replace("LEAST", "3"))
    Path("right.py").write_text(FILE.replace("LEAST", "9999"))
    entry = {"targets": ["*.py:attention"], "version": HERE}
    written(Path("known.toml"), **entry)
    written(Path("broken.toml"), **entry, when="kees > 2")
    written(Path("sometimes.toml"), **entry, when="keys % (queries - 2) == 0 or keys == 3")

    def run(file: str, known: str) -> tuple[int, str]:
        arguments = [f"{file}:attention", "--property", "rows_sum_to_one", "--cases", "30", "--dtype", "float64", "-v"]
        status = main([*arguments, "--deviations", known])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    status, out = run("wrong.py", "known.toml")
    assert status == 0 and "KNOWN    rows_sum_to_one · wrong.py:attention · Case(keys=3)" in out
    assert "library bug: a test" in out and "set aside as known" in out
    status, out = run("right.py", "known.toml")
    assert status == 1 and "GONE     rows_sum_to_one · right.py:attention" in out
    status, out = run("wrong.py", "broken.toml")
    assert status == 2 and "known deviation 1" in out and "kees" in out
    status, out = run("wrong.py", "sometimes.toml")
    assert status == 2 and re.search(r"^attncheck: the condition .* makes no sense of Case\(queries=2.*: .* zero$", out, re.MULTILINE)
    assert "Traceback" not in out


def test_the_deviations_of_the_built_ins_make_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each names properties that exist, has a reason and a version, and a condition that some case escapes."""
    from properties.engine.search.find_target import Builtins

    monkeypatch.setattr(Deviation, "over", lambda entry, *facts: False)  # those that only another torch has, too
    known = Builtins().deviations()
    assert "crash" in {entry.kind for entry in known}
    for entry in known:
        assert entry.shows in PROPERTIES and entry.concerns(entry.targets[0], entry.shows)
        assert len(entry.reason) > 30 and entry.kind in ("library bug", "undocumented", "convention", "crash")
        assert np.char.count(entry.version, " ") == 1
        if "*" in entry.properties:
            assert not entry.matches(Case(queries=2, keys=3, dim=2))
