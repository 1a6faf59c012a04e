"""The file of a run, line by line: what is written, what of it is read, and which files are kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impls import numpy_matmul
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.finding import Finding
from properties.engine.core.trial import Violation
from properties.engine.search import journal
from properties.engine.search.journal import Journal
from properties.engine.search.probe import make_target
from properties.engine.search.search import Outcome, Plan, search

SUMS = PROPERTIES["rows_sum_to_one"]
TARGET = make_target("right", numpy_matmul.attention, {"framework": "numpy"})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path: str) -> list[dict[str, object]]:
    return [{name: value for name, value in json.loads(line).items() if name != "sum"} for line in Path(path).read_text().splitlines()]


def test_a_run_begins_its_file_anew(folder: Path) -> None:
    Path("run.jsonl").write_text("of another run\n" * 9)
    made = Journal("run.jsonl")
    made.begin(["kernel.py:attention"], seed=7)
    assert Path("run.jsonl").read_text() == "of another run\n" * 9  # until there is something to write
    made.start()
    assert read("run.jsonl") == [{"arguments": ["kernel.py:attention"], "folder": str(folder), "seed": 7}]
    made.write(more=1)
    assert read("run.jsonl")[1:] == [{"more": 1}]
    Journal("deep/er/run.jsonl").begin([])
    assert journal.lines("deep/er/run.jsonl") == [{"arguments": [], "folder": str(folder)}]


def test_a_run_that_goes_on_adds_to_its_file() -> None:
    Journal("run.jsonl").begin(["a"])
    before = Path("run.jsonl").read_bytes()
    again = Journal("run.jsonl", journal.lines("run.jsonl"))
    again.begin(["b"])
    again.write(more=1)
    assert Path("run.jsonl").read_bytes() == before + journal.written({"more": 1}).encode() + b"\n"


def test_a_line_that_was_not_finished_takes_no_other_with_it() -> None:
    Journal("run.jsonl").begin(["a"])
    with open("run.jsonl", "a") as file:
        file.write('{"target": "kern')
    Journal("run.jsonl").write(more=1)
    assert journal.lines("run.jsonl")[1:] == [{"more": 1}]
    Journal("run.jsonl").write(more=2)
    assert Path("run.jsonl").read_text().endswith("".join(journal.written({"more": n}) + "\n" for n in (1, 2)))


def test_a_disk_that_is_full_does_not_end_a_run() -> None:
    Journal("nowhere/run.jsonl").note(more=1)
    with pytest.raises(OSError):
        Journal("nowhere/run.jsonl").write(more=1)


@pytest.mark.parametrize(
    "text", ["", "3\n", "[]\n", '{"arguments": []}\n', '{"folder": "", "argument": []}\n', "not a line\n", '{"more": 1}\n']
)
def test_what_is_no_journal_is_refused(text: str) -> None:
    Path("other.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"other.jsonl is not what a run has written down"):
        journal.lines("other.jsonl")


def test_lines_that_are_none_are_left_out() -> None:
    first = {"arguments": ["a"], "folder": "/", "seed": 1}
    wanted, other = journal.written({"more": 1, "of": None}), journal.written({"more": 2})
    odd = ["3", "[1]", '{"half": ', '{"more": 1}', '{"more": 3, "sum": 3}', other.replace("2,", "4,"), "[" * 100_000]
    Path("run.jsonl").write_text("\n".join([journal.written(first), *odd, wanted, ""]))
    assert journal.lines("run.jsonl") == [first, {"more": 1, "of": None}]


def test_the_newest_journals_are_kept() -> None:
    Path(journal.FOLDER).mkdir(parents=True)
    names = [f"2026-01-{day:02}.jsonl" for day in range(1, journal.KEPT + 4)]
    for name in reversed(names):
        (Path(journal.FOLDER) / name).touch()
    (Path(journal.FOLDER) / "notes.txt").touch()
    journal.forget()
    assert [path.name for path in journal.journals()] == names[3:] and (Path(journal.FOLDER) / "notes.txt").exists()
    journal.forget()
    assert len(journal.journals()) == journal.KEPT


def test_a_new_journal_has_a_name_of_its_own() -> None:
    assert Path(journal.new().path).parent == Path(journal.FOLDER).absolute() and str(os.getpid()) in Path(journal.new().path).stem


def test_a_digest_tells_whether_a_file_is_still_the_same(folder: Path) -> None:
    Path("kernel.py").write_text("x = 1\n")
    Path("own:er.py").write_text("x = 2\n")
    texts = [
        "kernel.py:attention",
        "own:er.py:Layer.forward",
        "kernel.py:attention@compile",
        "gone.py:f",
        "torch_sdpa.math",
        "json:loads",
        None,
        "",
    ]
    digest = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in ("kernel.py", "own:er.py")}
    assert journal.digests(texts) == digest
    Path("kernel.py").write_text("x = 3\n")
    assert journal.digests(texts)["kernel.py"] != digest["kernel.py"]


def test_for_how_long_a_target_had_been_searched() -> None:
    before = [
        {"target": "a", "at": 2.5},
        {"target": "a", "at": 7.25},
        {"target": "a", "at": 4},
        {"target": "b", "at": 99},
        {"target": "a"},
        {"more": 1},
    ]
    assert Journal("run.jsonl", before).seconds("a") == 7.25 and Journal("run.jsonl", before).seconds("c") == 0.0


def test_an_outcome_is_read_as_it_was_written() -> None:
    """Of one pass of one target; of a finding all but the arrays, which the target is asked for again."""
    made = Journal("run.jsonl")
    made.begin([])
    plan = Plan(examples=6, round=2, part=1)
    outcome = search(TARGET, SUMS, plan)
    violation = Violation("off", 1.0, 2.0, 0.5)
    outcome.finding = Finding(SUMS, "right", Case(keys=3), violation, 4, 0.25, ("keys",), ("dim",), (Case(keys=5),), "place", alone=False)
    made.tried(plan, Outcome(SUMS, "right"), 0.5)  # nothing was tried
    made.tried(plan, outcome, 1.23456)
    made.failing("right", SUMS, Case(keys=9), violation)
    lines = journal.lines("run.jsonl")
    assert [set(line) >= {"outcome"} for line in lines] == [False, True, False]
    assert (lines[1]["target"], lines[1]["property"], lines[1]["round"], lines[1]["part"]) == ("right", SUMS.name, 2, 1)
    assert abs(float(str(lines[1]["at"])) - 1.23456) < 0.001 and lines[2]["failing"] == SUMS.name and lines[2]["case"] == repr(Case(keys=9))
    known = Journal("run.jsonl", lines).known(TARGET, [SUMS], plan)[SUMS.name]
    for name in ("prop", "target", "cases", "set_aside", "seconds", "not_exercised", "right", "features", "edges"):
        assert getattr(known, name) == getattr(outcome, name), name
    assert vars(known.notes) == vars(outcome.notes) and isinstance(known.notes.not_taken, Counter)
    assert known.ranges == outcome.ranges and known.finding is not None
    assert {name: vars(known.finding)[name] for name in vars(outcome.finding) if name != "violation"} == {
        name: value for name, value in vars(outcome.finding).items() if name != "violation"
    }
    assert journal._violation(known.finding.violation) == journal._violation(violation)


def test_only_what_was_made_of_this_pass_is_known() -> None:
    made = Journal("run.jsonl")
    made.begin([])
    made.tried(Plan(), search(TARGET, SUMS, Plan(examples=2)), 1.0)
    lines = journal.lines("run.jsonl")
    assert set(Journal("run.jsonl", lines).known(TARGET, [SUMS], Plan())) == {SUMS.name}
    other = make_target("other", numpy_matmul.attention, {"framework": "numpy"})
    for target, properties, plan in (
        (other, [SUMS], Plan()),
        (TARGET, [], Plan()),
        (TARGET, [SUMS], Plan(part=1)),
        (TARGET, [SUMS], Plan(round=1)),
    ):
        assert Journal("run.jsonl", lines).known(target, properties, plan) == {}


def test_the_arrays_of_a_finding_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the target still answers in the same way there; a finding that did not come of the case alone is not tried again."""
    written = Violation("off", 1.0, 2.0, 0.5)
    same, other = (dataclasses.replace(written, actual=actual, wrong=np.ones(3, dtype=bool)) for actual in (1.0, 1.5))
    raised = dataclasses.replace(written, raised=True)
    asked: list[Any] = []
    for violation, alone, now, arrays in (
        (written, True, same, True),
        (written, True, other, False),
        (written, True, None, False),
        (written, False, same, False),
        (raised, True, same, False),
    ):
        monkeypatch.setattr(journal, "try_case", lambda target, prop, case, now=now: asked.append(case) or now)
        kept = Finding(SUMS, "right", Case(keys=3), violation, 4, 0.25, alone=alone)
        assert journal._again(kept, TARGET).violation is (same if arrays else violation)
    assert asked == [Case(keys=3)] * 3
