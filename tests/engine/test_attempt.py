"""What one case shows: a claim that fails, a call that raises, and the hints that go with them; and which cases a property is about."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from impls import numpy_matmul
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core import attempt as module
from properties.engine.core.attempt import NO_ZERO_SIZES, attempt, subject, try_case
from properties.engine.core.crash import CAN_FORK, ended, isolated, killed_by
from properties.engine.core.declare import covers, declare, declared
from properties.engine.core.pace import NoArray
from properties.engine.core.target import NotTaken, Raised, blame, first_line
from properties.engine.core.trial import Notes
from properties.engine.core.words import cases, ranges
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target

SUMS = PROPERTIES["rows_sum_to_one"]
RIGHT = make_target("right", numpy_matmul.attention, {"framework": "numpy"})


def raising(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
    """Right on usual calls; it raises on masks, and where 13 keys are given."""
    if attn_mask is not None or k.shape[2] in (0, 13):
        raise ValueError("not this\nand more")
    return numpy_matmul.attention(q, k, v, is_causal=is_causal)


def test_what_is_right_shows_nothing_and_is_counted() -> None:
    assert not SUMS.exact and not SUMS.direct and SUMS.edge == ""
    notes = Notes()
    violation, trial = attempt(RIGHT, SUMS, Case(keys=3), notes)
    assert violation is None and trial.notes is notes and notes.compared > 0 and trial.runs
    assert try_case(RIGHT, SUMS, Case(keys=3)) is None


def test_a_claim_that_fails() -> None:
    wrong = make_target("wrong", lambda q, k, v: numpy_matmul.attention(q, k, v) * 1.5, {"framework": "numpy"})
    violation = try_case(wrong, SUMS, Case(keys=3))
    assert violation is not None and not violation.raised and not violation.killed and violation.hint == ""
    ones = make_target("ones", lambda q, k, v: numpy_matmul.attention(q, k, v) + (k.shape[2] == 0), {"framework": "numpy"})
    violation = try_case(ones, PROPERTIES["output_is_inside_the_bound"], Case(keys=0, queries=2))
    assert violation is not None and violation.hint == NO_ZERO_SIZES


def test_a_call_that_raises() -> None:
    found = dataclasses.replace(RIGHT, function=raising)
    violation = try_case(found, SUMS, Case(keys=13))
    assert violation is not None and violation.raised and not violation.killed
    assert violation.says == "the call raised ValueError: not this" and violation.hint == ""
    assert np.isnan(violation.actual) and np.isnan(violation.expected) and violation.allowed == 0
    empty = try_case(found, SUMS, Case(keys=0))
    assert empty is not None and empty.hint == NO_ZERO_SIZES
    both = try_case(
        found, PROPERTIES["output_is_inside_the_bound"], Case(keys=3, is_causal=True, mask="random", mask_axes="S", mask_rank=1)
    )
    assert both is not None and "mask_and_causal = false" in both.hint and "mask_rank = 2" in both.hint
    alone = try_case(found, PROPERTIES["output_is_inside_the_bound"], Case(keys=3, mask="random"))
    assert alone is not None and "mask_and_causal" not in alone.hint and "mask_rank" not in alone.hint


def test_a_layer_is_seen_as_the_attention_inside_it() -> None:
    layer = find_targets("numpy_matmul.multihead", Builtins())[0]
    assert subject(RIGHT, SUMS) is RIGHT and subject(layer, SUMS) is not layer and subject(layer, SUMS).contract == "attention"
    assert try_case(layer, SUMS, Case(keys=3)) is None


@pytest.mark.skipif(not CAN_FORK, reason="a process is tried in a fork, which there is on Linux alone")
def test_what_a_process_does_not_survive() -> None:
    def fails() -> None:
        raise KeyError("anything")

    assert killed_by(fails) == ""  # nothing is tried apart
    with isolated():
        assert killed_by(fails) == "" and killed_by(lambda: None) == ""
        ends = killed_by(lambda: os._exit(3)), killed_by(lambda: os.kill(os.getpid(), signal.SIGKILL))
        found = dataclasses.replace(RIGHT, function=lambda q, k, v: os._exit(5) if k.shape[2] == 13 else numpy_matmul.attention(q, k, v))
        violation = try_case(found, SUMS, Case(keys=13))
        assert try_case(found, SUMS, Case(keys=3)) is None
    assert violation is not None and violation.raised and violation.killed and violation.allowed == 0 and np.isnan(violation.actual)
    assert violation.says == "the call ended the process (exit status 5)"
    assert ends == ("ended the process (exit status 3)", "killed the process (SIGKILL)")
    assert ended(3) == "ended the process (exit status 3)" and ended(-9) == "killed the process (SIGKILL)"


def test_what_ends_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the property made of it."""
    ends = ["ended before"]
    monkeypatch.setattr(module, "ENDS", ends)
    monkeypatch.setattr(module, "Shared", type(RIGHT.framework))

    def hangs(q: Any, k: Any, v: Any) -> Any:
        if k.shape[2] == 13:
            ends.append("took too long")
        return numpy_matmul.attention(q, k, v)

    found = dataclasses.replace(RIGHT, function=hangs)
    violation = try_case(found, SUMS, Case(keys=13))
    assert violation is not None and violation.says == "the call took too long" and violation.raised and violation.killed
    assert violation.allowed == 0 and np.isnan(violation.actual) and try_case(found, SUMS, Case(keys=3)) is None
    gone = dataclasses.replace(SUMS, check=lambda t: (_ for _ in ()).throw(module.Gone("has gone")))
    monkeypatch.setattr(module, "Shared", str)
    violation = try_case(RIGHT, gone, Case(keys=3))
    assert (
        violation is not None and violation.says == "the call has gone" and violation.raised and violation.killed and violation.allowed == 0
    )


def test_a_working_directory_that_a_target_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Shared", type(RIGHT.framework))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def removes(q: Any, k: Any, v: Any) -> Any:
        shutil.rmtree(tmp_path / "here", ignore_errors=True)
        return numpy_matmul.attention(q, k, v)

    assert try_case(dataclasses.replace(RIGHT, function=removes), SUMS, Case(keys=3)) is None
    assert Path.cwd().is_dir()


# ---------------------------------------------------------------- what a target is


def test_a_head_is_held_to_its_bound_beside_one_without() -> None:
    """An infinity in one head excuses nothing in another: only a layer mixes them."""

    def wrong(q: Any, k: Any, v: Any) -> Any:
        return numpy_matmul.attention(q, k, v) * [[[1.5]], [[1.0]]]

    endless = Case(kv_heads=2, queries=2, keys=3, dim=2, edits=(("v", 7, np.inf),))
    assert try_case(RIGHT, PROPERTIES["output_is_inside_the_bound"], endless) is None
    assert try_case(dataclasses.replace(RIGHT, function=wrong), PROPERTIES["output_is_inside_the_bound"], endless)


def test_what_costs_is_what_was_declared_or_what_the_framework_says() -> None:
    costly: Any = SimpleNamespace(costly_shapes=True)
    for fw, said, costs in ((costly, None, True), (costly, False, False), (RIGHT.framework, None, False), (RIGHT.framework, True, True)):
        supports = dataclasses.replace(RIGHT.supports, costly_shapes=said)
        assert dataclasses.replace(RIGHT, framework=fw, supports=supports).costly_shapes is costs


def test_a_setting_that_a_call_leaves_changed_is_found_and_put_back() -> None:
    def careless(q: Any, k: Any, v: Any) -> Any:
        np.seterr(divide="raise" if np.geterr()["divide"] != "raise" else "warn")
        return numpy_matmul.attention(q, k, v)

    before = np.geterr()
    tidy = PROPERTIES["process_is_left_as_it_was"]
    violation = try_case(dataclasses.replace(RIGHT, function=careless), tidy, Case(keys=3))
    assert violation is not None and violation.says == "the call changed what happens on divide, and left it so"
    assert np.geterr() == before and try_case(RIGHT, tidy, Case(keys=3)) is None


def test_of_several_results_the_first_counts() -> None:
    assert RIGHT.first((1, 2)) == 1 and RIGHT.first([3]) == 3 and RIGHT.first(4) == 4
    with pytest.raises(Raised, match="returned tuple, not an array of numpy"):
        RIGHT.read(RIGHT.first(()))


def test_a_gradient_is_sent_back_once_unless_it_is_asked_for_again() -> None:
    torch = pytest.importorskip("torch")
    found = make_target("of torch", lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, {"framework": "torch"})
    leaves = [torch.ones(1, 1, 2, 2, dtype=torch.float64) for _ in range(3)]
    out, send = found.record(found.function, leaves)
    assert send is not None and len(send(torch.ones_like(out), True)) == 3 == len(send(torch.ones_like(out)))
    with pytest.raises(Raised):
        send(torch.ones_like(out))
    assert found.record(lambda *given: given[0].detach(), leaves)[1] is None


# ---------------------------------------------------------------- words, and what a field may be


def test_the_first_line_of_what_was_said() -> None:
    assert first_line(ValueError("\n one\ntwo")) == "one" and first_line(ValueError()) == ""
    assert blame(Raised(NoArray("returned int, not an array"))) == "returned int, not an array"
    assert blame(Raised(TypeError("no"))) == "raised TypeError: no"
    assert blame(NotTaken("masks of two axes")) == "raised ValueError: masks of two axes"


@pytest.mark.parametrize(
    ("about", "value", "covered"),
    [
        (3, 3, True),
        (3, 4, False),
        (True, True, True),
        ((1, 5), 3, True),
        ((1, 5), 5, True),
        ((1, 5), 1, True),
        ((1, 5), 6, False),
        ((-2, 5), 0, False),  # zero is never between
        ((0, 5), 0, True),
        ((1, 5), "x", False),
        ((1, 5), True, True),  # it equals 1
        ((2, 5), True, False),
        (("a", "b"), "a", True),
        (("a", "b"), 1, False),
        ((None, 1.0, 2.0), 1.5, True),
        ((None, 1.0, 2.0), None, True),
        ((True, False), 0.5, False),
    ],
)
def test_what_a_field_may_be(about: Any, value: Any, covered: bool) -> None:
    assert covers(about, value) is covered


def test_cases_that_a_property_is_not_about() -> None:
    prop = dataclasses.replace(SUMS, domain={"keys": (2, 5), "is_causal": False})
    assert prop.excludes(Case(keys=3), ("keys", "is_causal")) == ""
    assert prop.excludes(Case(keys=9), ("keys",)) == "it is about other keys than 9"
    assert prop.excludes(Case(keys=9, is_causal=True), ("is_causal",)) == "it is about is_causal = False"


def test_a_property_that_says_what_its_cases_have_not_is_refused() -> None:
    def spoken(t: Any) -> None:
        """Something."""

    def silent(t: Any) -> None: ...

    before = dict(declared())
    with pytest.raises(ValueError, match=r"spoken.*kees"):
        declare("x = x", contract="attention", kees=3)(spoken)
    with pytest.raises(ValueError, match="property silent says nothing"):
        declare("x = x", contract="attention")(silent)
    assert declared() == before


def test_numbers_in_runs() -> None:
    assert ranges([1, 3, 4, 5, 9]) == "1, 3 to 5, 9" and ranges([]) == "" and ranges([4]) == "4"
    assert ranges(range(0, 12, 2)) == "0, 2, 4, 6, 8, 10" and ranges(range(0, 14, 2)) == "0, 2, 4, 6, 8, 10 …"
    assert ranges(np.array([1, 2]), to="–") == "1–2"


def test_cases_are_counted() -> None:
    assert [cases(n) for n in (0, 1, 2, 1234)] == ["0 cases", "1 case", "2 cases", "1,234 cases"]
    assert [cases(n, 3) for n in (1, 2)] == ["  1 case ", "  2 cases"]  # in a column
