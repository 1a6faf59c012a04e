"""What a trial's claims accept and refuse, at their borders, and what they count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from properties.attention.case import Case
from properties.attention.trial import Trial
from properties.catalogue import PROPERTIES
from properties.engine.core.attempt import attempt
from properties.engine.core.trial import Notes, Refuted, Violation, describe
from properties.engine.search.find_target import Builtins
from properties.engine.search.probe import make_target

RIGHT = make_target("right", Builtins().module.load(Builtins().entries["numpy_matmul.attention"]))
ABOVE = np.nextafter(1.0, 2.0)


class Run:
    """An answer with its bound."""

    def __init__(self, *bound: float) -> None:
        self.bound = np.array(bound)


def claim(name: str, *arguments: Any, **options: Any) -> tuple[Violation | None, Notes]:
    """What a claim says, and what it has counted."""
    trial = Trial(RIGHT, Case())
    try:
        getattr(trial, name)(*arguments, **options)
    except Refuted as refuted:
        assert str(refuted) == refuted.violation.says
        return refuted.violation, trial.notes
    return None, trial.notes


def holds(name: str, *arguments: Any, **options: Any) -> bool:
    return claim(name, *arguments, **options)[0] is None


def test_close_allows_what_is_allowed_and_no_more() -> None:
    assert holds("close", [1.5], [1.0], [0.5], "") and holds("close", [-1.5], [-1.0], [0.5], "")
    assert not holds("close", [1.5], [1.0], [np.nextafter(0.5, 0)], "")
    assert not holds("close", [0.5], [1.0], [0.4], "") and not holds("close", [1.0], [-1.0], [0.5], "")
    assert holds("close", [1.0], [1.0], [0.0], "") and not holds("close", [ABOVE], [1.0], [0.0], "")


def test_close_without_numbers() -> None:
    for x in (np.nan, np.inf, -np.inf):
        assert holds("close", [x], [x], [0.0], "")
        assert holds("close", [x], [1.0], [np.inf], "") and not holds("close", [x], [1.0], [1e300], "")
    assert not holds("close", [1.0], [np.nan], [9.0], "") and not holds("close", [np.inf], [-np.inf], [9.0], "")
    assert not holds("close", [1.0], [1.0 + 1e-9], [np.nan], "")  # no bound allows nothing
    assert holds("close", np.zeros(0), np.zeros(0), np.zeros(0), "")


def test_nothing_is_claimed_elsewhere() -> None:
    for name, numbers in (("close", ([0.0, 5.0], [0.0, 0.0], [1.0, 1.0])), ("within", ([0.0, 5.0], [0.0, 5.0], [0.0, 0.0], [1.0, 1.0]))):
        assert not holds(name, *map(np.array, numbers), "")
        assert holds(name, *map(np.array, numbers), "", np.array([True, False]))
        assert not holds(name, *map(np.array, numbers), "", np.array([False, True]))
    assert holds("at_least", [0.0, 5.0], [1.0, 1.0], [0.0, 0.0], "", np.array([False, True]))
    assert not holds("at_least", [0.0, 5.0], [1.0, 1.0], [0.0, 0.0], "", np.array([True, False]))


def test_what_is_compared_is_counted() -> None:
    numbers = [1.0, 1.25, 7.0, 3.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, np.inf, 2.5]
    violation, notes = claim("close", *numbers, "")
    assert violation is None
    assert (notes.compared, notes.ill_posed, notes.used) == (3, 1, 0.8)
    violation, notes = claim("close", *numbers, "", [True, True, True, False])
    assert violation is None and (notes.compared, notes.ill_posed, notes.used) == (2, 1, 0.25)
    violation, notes = claim("close", [1.0, 5.0], [1.0, 1.0], [0.0, 1.0], "")
    assert violation is not None and (notes.compared, notes.used) == (2, 0.0)  # what breaks a claim uses none of its bound


def test_the_largest_share_of_a_bound_is_kept() -> None:
    trial = Trial(RIGHT, Case())
    for off in (0.25, 0.75, 0.5):
        trial.close([1 + off, 1.0], [1.0, 1.0], [1.0, 1.0], "")
    assert trial.notes.used == 0.75 and trial.notes.compared == 6
    trial.close([1.0, 1.875], [1.0, 1.0], [0.0, 1.0], "")  # nothing of a bound of 0 is used, and it hides no other
    assert trial.notes.used == 0.875


def test_inside_asks_the_oracle_for_its_last_digits() -> None:
    trial = Trial(RIGHT, Case(keys=3, dim=2, seed=1))
    run = trial.run()
    error = run.exact.out_error(run.out)
    trial.inside(run, error, "")
    trial.within(error, run.out, run.exact.out, error, "")
    assert trial.notes.compared == 2 * error.size
    for allowed in (error - 2.0**-80, -np.ones(error.shape)):
        with pytest.raises(Refuted):
            trial.inside(run, allowed, "")
        with pytest.raises(Refuted):
            trial.within(error, run.out, run.exact.out, allowed, "")
        trial.inside(run, allowed, "", False)
    with pytest.raises(Refuted):
        trial.same_bits(run.out, run.out + 1, "")


def test_at_least() -> None:
    assert holds("at_least", [1.0], [1.0], [0.0], "") and holds("at_least", [0.5], [1.0], [0.5], "")
    assert not holds("at_least", [0.25], [1.0], [0.5], "") and holds("at_least", [9.0], [1.0], [0.5], "")
    assert not holds("at_least", [np.nan], [1.0], [0.5], "") and holds("at_least", [np.nan], [1.0], [np.inf], "")


def test_the_worst_element_is_told() -> None:
    actual, allowed = np.zeros((1, 1, 2, 3)), np.ones((1, 1, 2, 3))
    actual[0, 0, 0, 1], actual[0, 0, 1, 2], actual[0, 0, 1, 0] = 5.0, -4.0, 9.0
    allowed[0, 0, 0, 1], allowed[0, 0, 1, 0] = 4.5, 8.9  # the largest difference breaks the claim by least
    violation, _ = claim("close", actual, np.zeros(actual.shape), allowed, "batch {batch} head {head} row {row} column {column}")
    assert violation is not None
    assert violation.says == "batch 0 head 0 row 1 column 2"
    assert (violation.actual, violation.expected, violation.allowed, violation.difference) == (-4.0, 0.0, 1.0, 4.0)
    assert violation.wrong is not None and violation.wrong.sum() == 3
    assert violation.columns == "features" and not violation.raised and not violation.killed and violation.compared is not None
    violation, _ = claim("close", [0.0, np.nan, 9.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], "key {column} and {{braces}}")
    assert violation is not None and violation.says == "key 1 and {braces}" and violation.columns == "keys"  # nothing is worse than NaN
    violation, _ = claim("close", [2.0, 0.0, -6.0], [9.0, 0.0, -1.0], [0.0, 0.0, 0.0], "no place: }")
    assert violation is not None and violation.says == "no place: }" and violation.actual == 2.0
    violation, _ = claim("close", [5.0, 5.0], [4.0, -1.0], [0.0, 0.0], "column {column}")
    assert violation is not None and violation.says == "column 1"


def test_the_worst_element_of_what_is_right_beside_it() -> None:
    """An element that keeps its claim is not told, however far its difference is from what is allowed."""
    violation, _ = claim("close", [1e9, 1.5, 3.0], [0.0, 0.0, 0.0], [np.inf, 1.0, 9.0], "column {column}")
    assert violation is not None and violation.says == "column 1"
    assert violation.wrong is not None and violation.wrong.tolist() == [False, True, False]


def test_yes_or_no_has_no_numbers() -> None:
    violation, _ = claim("close", np.array([False, True]), False, np.zeros(2), "element {column}")
    assert (
        violation is not None
        and violation.says == "element 1"
        and violation.wrong is not None
        and violation.wrong.tolist() == [False, True]
    )
    assert np.isnan(violation.actual) and np.isnan(violation.expected) and violation.allowed == 0 and violation.compared is None
    assert describe(violation) == "element 1"


def test_bounded_leaves_out_what_any_run_cannot_promise() -> None:
    trial = Trial(RIGHT, Case())
    bounded = trial.bounded(Run(1.0, np.inf, 1.0), Run(1.0, 1.0, np.nan))
    assert bounded.tolist() == [True, False, False] and trial.notes.ill_posed == 2
    assert trial.bounded(Run(1.0, 1.0, 1.0)).all() and trial.notes.ill_posed == 2


def test_notes_add_up() -> None:
    notes = Notes(used=0.5, compared=3, ill_posed=1, adequate=2, judged=4, fits={"same": 0.25, "wide": 0.5}, not_taken=Counter(odd=2))
    more = Notes(used=0.25, compared=10, ill_posed=20, adequate=30, judged=40, fits={"same": 0.5, "wide": 0.25, "tf32": 0.125})
    more.not_taken.update(odd=1, long=5)
    notes.merge(more)
    assert notes == Notes(0.5, 13, 21, 32, 44, {"same": 0.5, "wide": 0.5, "tf32": 0.125}, Counter(odd=3, long=5))
    notes.merge(Notes(used=0.75))
    assert notes == Notes(0.75, 13, 21, 32, 44, {"same": 0.5, "wide": 0.5, "tf32": 0.125}, Counter(odd=3, long=5))
    assert Notes() == Notes(0.0, 0, 0, 0, 0, {}, Counter())
    kept = Notes()
    assert Trial(RIGHT, Case(), kept).notes is kept


def test_a_case_that_comes_to_a_call_that_is_not_taken_says_nothing() -> None:
    eights = make_target("eights", RIGHT.function, {"framework": "numpy", "length_multiple": 8})
    notes = Notes()
    for case, left_out in ((Case(queries=8, keys=8), False), (Case(queries=8, keys=7), True)):
        violation, trial = attempt(eights, PROPERTIES["output_is_inside_the_bound"], case, notes)
        assert violation is None and trial.not_taken is left_out
    assert notes.not_taken == Counter({"lengths that are no multiples of 8": 1})


def test_slight_is_little_beside_the_bound_or_the_last_digits() -> None:
    def slight(actual: float, expected: float, allowed: float) -> bool:
        return Violation("", actual, expected, allowed).slight

    assert slight(1.0, 1.99, 0.01) and not slight(1.0, 2.01, 0.01)  # less than a hundred times what is allowed
    assert slight(0.0, 0.99, 0.01) and not slight(0.0, 1.0, 0.01)  # so many times are too many
    assert not slight(1.0, 1.0, 0.01)
    assert slight(1e6, 1e6 + 0.99, 0.0) and not slight(1e6, 1e6 + 1.01, 0.0)  # of the larger of the two, a millionth
    assert slight(1e6 + 1, 1e6, 0.0) and slight(1e6, 1e6 + 1, 0.0)
    assert slight(-1e6, -1e6 - 0.99, 0.0) and not slight(1e-3, -1e-3, 0.0)
    assert not slight(np.nan, 1.0, 1.0) and not slight(1.0, np.nan, 1.0)


def test_one_line_of_a_violation() -> None:
    assert describe(Violation("off", 1.0, 3.0, 0.5, hint=" (a hint)")) == "off: got 1, expected 3; |difference| 2, allowed 0.5 (a hint)"
    assert describe(Violation("off", 1.0, 3.0, 0.0)) == "off: got 1, expected 3; |difference| 2, allowed 0 (exact)"
    assert describe(Violation("off", np.nan, 3.0, 1.0)) == "off: got nan, expected 3; |difference| nan, allowed 1"
    assert describe(Violation("raised", np.nan, np.nan, 0.0, hint=" (a hint)")) == "raised (a hint)"
    violation, _ = claim("fail", "no number")
    assert violation is not None and describe(violation) == "no number" and violation.allowed == 0


def test_choices_are_those_of_the_seed() -> None:
    one, again, other = Trial(RIGHT, Case(seed=1)), Trial(RIGHT, Case(seed=1)), Trial(RIGHT, Case(seed=2))
    assert one.choice("x", 1000) == again.choice("x", 1000) != other.choice("x", 1000) != one.choice("y", 1000)
    assert (one.noise("x", (8,)) == again.noise("x", (8,))).all() and (one.noise("x", (8,)) != other.noise("x", (8,))).all()
    assert sorted(one.permutation("x", 8)) == list(range(8)) and (one.permutation("x", 2) == [1, 0]).all()
