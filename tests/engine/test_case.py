"""A case prints only what differs, reads back what it prints, and executes nothing."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from permissive import attention_target, layer_target

from properties.catalogue import PROPERTIES
from properties.engine.search.search import cases
from properties.multihead.cases import Case

DEFAULTS = {field.name: field.default for field in dataclasses.fields(Case)}
DRAWN = st.one_of(
    [
        cases(attention_target(), PROPERTIES["output_is_inside_the_bound"]),
        cases(attention_target(), PROPERTIES["rounding_is_not_biased"]),
        cases(layer_target(), PROPERTIES["layer_is_inside_the_bound"]),
    ]
)


@settings(max_examples=400, deadline=None, database=None)
@given(DRAWN)
def test_what_is_printed_reads_back(case: Case) -> None:
    assert type(case).parse(repr(case)) == case
    assert eval(repr(case), {"Case": type(case)}) == case


@settings(max_examples=400, deadline=None, database=None)
@given(DRAWN)
def test_only_what_differs_is_printed(case: Case) -> None:
    read = Case.parse(repr(case))
    printed = {part.split("=")[0] for part in repr(case)[5:-1].replace("(", " ").split(", ") if "=" in part}
    assert printed == {name for name, default in DEFAULTS.items() if getattr(read, name) != default}


FLOATS = st.one_of(st.floats(allow_nan=False), st.sampled_from((-0.0, math.inf, -math.inf, 5e-324, -5e-324)))


@settings(max_examples=300, deadline=None, database=None)
@given(scale=FLOATS, value=FLOATS, index=st.integers(0, 10**9), density=st.floats(0, 1))
def test_every_number_reads_back_to_the_last_bit(scale: float, value: float, index: int, density: float) -> None:
    case = Case(scale=scale, edits=(("v", index, value),), mask_density=density)
    read = Case.parse(repr(case))
    assert read == case
    assert read.scale is not None and math.copysign(1, read.scale) == math.copysign(1, scale)
    assert math.copysign(1, read.edits[0][2]) == math.copysign(1, value)


def test_nan_reads_back() -> None:
    read = Case.parse(repr(Case(edits=(("k", 0, math.nan), ("q", 1, -math.inf)))))
    assert math.isnan(read.edits[0][2]) and read.edits[1] == ("q", 1, -math.inf)


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_field_can_be_said(name: str) -> None:
    known, default = Case.fields()[name], DEFAULTS[name]
    other: dict[str, Any] = {"device": "cuda", "scale": 0.0, "edits": (("q", 1, -0.0),), "mask_density": 0.2}
    value = next((choice for choice in known.choices if choice != default), not default if isinstance(default, bool) else 6)
    case = Case(**{name: other.get(name, value)})
    assert repr(case).startswith(f"Case({name}=") and Case.parse(repr(case)) == case


def test_the_simplest_case_prints_nothing() -> None:
    assert repr(Case()) == "Case()"
    assert repr(Case(is_causal=True, queries=4)) == "Case(queries=4, is_causal=True)"  # in the order of declaration
    assert Case.parse("  Case( queries = 4 )\n") == Case(queries=4)


REFUSED = {
    "": "not a case: ''; expected for example Case(queries=4, is_causal=True)",
    "Case(": "not a case: 'Case('",
    "queries=4": "not a case: 'queries=4'",
    "dict(queries=4)": "not a case: 'dict(queries=4)'",
    "x.Case()": "not a case: 'x.Case()'",
    "Case(querys=4)": f"a case has no field 'querys'; its fields are {', '.join(sorted(DEFAULTS))}",
    "Case(4)": "the fields of a case are given by name",
    "Case(**{'queries': 4})": "a case has no field None",
    "Case(queries=len('abc'))": "not a literal value: len('abc')",
    "Case(queries=a)": "not a literal value: a",
    "Case(edits=(('q', 0, f()),))": "not a literal value: f()",
    "Case(scale=-f())": "not a literal value: f()",
    "Case(queries=[i for i in range(9)])": "not a literal value: [i for i in range(9)]",
    "Case(queries=f'{1}')": "not a literal value:",
    "Case(queries=4, queries=5)": "the field 'queries' is given twice",
    "Case(queries='4'.strip)": "not a literal value:",
    "Case(scale=-'a')": "not a literal value:",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_case_gets_one_sentence(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        Case.parse(text)
    message = str(caught.value)
    assert message.startswith(REFUSED[text]) and "\n" not in message and not message.endswith(".")


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for text in (
        f"Case(queries=open({str(mark)!r}, 'w'))",
        f"Case(queries=__import__('pathlib').Path({str(mark)!r}).touch())",
        f"[open({str(mark)!r}, 'w'), Case()][1]",
        f"Case(edits=(open({str(mark)!r}, 'w'),))",
        f"(lambda: open({str(mark)!r}, 'w'))()",
    ):
        with pytest.raises(ValueError):
            Case.parse(text)
    assert not mark.exists()


MEANINGLESS = {
    "Case(values='nrmal')": "the field 'values' of a case is 'nrmal'; did you mean 'normal'?",
    "Case(mask='rndom')": "the field 'mask' of a case is 'rndom'; did you mean 'random'?",
    "Case(layout='rows')": "the field 'layout' of a case is 'rows'; it can be 'contiguous', 'transposed'",
    "Case(mask_axes='SL')": "the field 'mask_axes' of a case is 'SL'; ",
    "Case(mask_rank=9)": "the field 'mask_rank' of a case is 9; it can be 0, 1, 2, 3, 4",
    "Case(dtype='float8')": "the field 'dtype' of a case is 'float8'; did you mean 'float64'?",
    "Case(queries='4')": "the field 'queries' of a case is int, got '4'",
    "Case(queries=2.0)": "the field 'queries' of a case is int, got 2.0",
    "Case(is_causal=1)": "the field 'is_causal' of a case is bool, got 1",
    "Case(scale='a')": "the field 'scale' of a case is float | None, got 'a'",
    "Case(edits=3)": "the field 'edits' of a case is tuple[Edit, ...], got 3",
    "Case(edits=(('w', 0, 1.0),))": "an edit is (tensor, index, value), for example ('v', 0, 1.0), got ('w', 0, 1.0)",
    "Case(keys=-1)": "the field 'keys' of a case is at least 0, got -1",
    "Case(group=0)": "the field 'group' of a case is at least 1, got 0",
}


@pytest.mark.parametrize("text", MEANINGLESS)
def test_a_case_that_means_nothing_is_refused(text: str) -> None:
    """A typo must not turn into another case that passes."""
    with pytest.raises(ValueError) as caught:
        Case.parse(text)
    assert str(caught.value).startswith(MEANINGLESS[text]) and "\n" not in str(caught.value)
