"""Whatever somebody declares of a target, or of a known deviation, is taken, or refused in one sentence: it is never taken in silence."""

from __future__ import annotations

import dataclasses
import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import catalogue
from properties.engine.core.schema import some_of
from properties.engine.core.supports import CHOICES, SCHEMA, Supports
from properties.engine.core.target import CannotRun
from properties.engine.search import deviations
from properties.engine.search.probe import make_target
from properties.engine.search.search import cases, inapplicable

assert catalogue.PROPERTIES

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 300)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["float32", "bool", "LS", "zero", "leaks", "top-left", "bhld", "same", "fused", "relu", "half", "cpu"])
    | st.dates()
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.sampled_from(["float32"]), inner, max_size=2),
    max_leaves=4,
)
KINDS: dict[str, Any] = {
    **dict.fromkeys(CHOICES, str),
    **dict.fromkeys(("framework", "empty_rows_added", "contract"), (str, type(None))),
    "max_length": (int, type(None)),
    "groups": (tuple, type(None)),
    "mask_rank": int,
    "length_multiple": int,
    "window": (tuple, type(None)),
    "memory": (tuple, type(None)),
    "fill": (int, float, type(None)),
    "arithmetic": dict,
    "spoken": (dict, type(None)),
    "eps": (int, float),
    **dict.fromkeys(("costly_shapes", "gradients", "bias_gradients"), (bool, type(None))),
    **dict.fromkeys(
        ("value_dim", "zero_sizes", "mask_and_causal", "rows_without_keys", "non_finite", "returns_weights", "odd_dim", "norm_first"), bool
    ),
    **dict.fromkeys(("devices", "dtypes", "parameters", "head_dims", "mask_kinds", "mask_axes"), tuple),
}


def test_every_key_has_a_schema() -> None:
    assert set(SCHEMA) == {field.name for field in dataclasses.fields(Supports)} == set(KINDS)


@pytest.mark.parametrize("key", SCHEMA)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(value=ANYTHING)
def test_what_is_declared_is_taken_as_what_it_is_or_refused_in_a_sentence(key: str, value: Any) -> None:
    try:
        read = getattr(Supports.read({key: value}), key)
    except ValueError as error:
        assert str(error).startswith(f"supports['{key}'] ") and "\n" not in str(error)
        return
    assert isinstance(read, KINDS[key])
    assert isinstance(read, bool) == (bool in (KINDS[key] if isinstance(KINDS[key], tuple) else (KINDS[key],)) and read is not None)


WRONG: dict[str, Any] = {
    "zero_sizes": "no",
    "eps": math.inf,
    "head_dims": ["a"],
    "arithmetic": 3,
    "max_length": True,
    "mask_kinds": [3],
    "dtypes": {"float32": 1},
    "contract": 3,
    "framework": ["numpy"],
}


@pytest.mark.parametrize("key, value", WRONG.items())
def test_it_is_the_key_that_is_named(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^supports\['{key}'\] "):
        Supports.read({key: value})


TOO_LONG = [f"{'9' * 400}/sqrt(dim)", f"0.{'0' * 400}1", f"1/sqrt({'9' * 400})", f"1/sqrt({'9' * 5000})"]
BORDERS: dict[str, tuple[list[Any], list[Any]]] = {  # what is just taken, what is just refused
    "mask_rank": ([0, 4], [-1, 5]),
    "max_length": ([1, None], [0]),
    "length_multiple": ([1, 8], [0]),
    "window": ([[-1, 0], [7, -1], None], [[-2, 0], [0, -2], [1], [1, 2, 3], [True, 1]]),
    "head_dims": ([1, [1, 64]], [0, [64, 0], []]),
    "groups": ([1, [1, 2]], [0, [2, 0], []]),
    "memory": (["contiguous", ["contiguous", "offset"], None], [[], ["diagonal"]]),
    "eps": ([1e-30, 1], [0, -1e-5, 10**400]),
    "default_scale": (
        ["1", "1/sqrt(dim)", "1/sqrt(64)", "2/sqrt(dim)", "0.5/dim", "0.3"],
        [1, 0.125, "1/sqrt(0)", "1/sqrt(-1)", "1/sqrt(x)", "1/64", "0/dim", "0", "-1/dim", "1/sqrt(dim", "1/dim)", *TOO_LONG],
    ),
}


@pytest.mark.parametrize("key", BORDERS)
def test_where_the_border_lies(key: str) -> None:
    taken, refused = BORDERS[key]
    for value in taken:
        Supports.read({key: value})
    for value in refused:
        with pytest.raises(ValueError, match=rf"^supports\['{key}'\] "):
            Supports.read({key: value})


def test_who_declares_nothing_is_taken_for_the_usual() -> None:
    """PyTorch's layers have an eps of 1e-5, and every formula of sinusoids that is published takes odd widths, too."""
    assert (Supports().eps, Supports().odd_dim, Supports().zero_sizes, Supports().norm_first) == (1e-5, True, True, False)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, attn_mask: Any = None, is_causal: bool = False) -> np.ndarray:
    return v[:, :, :1] + 0 * q[..., :1]


@pytest.mark.parametrize("declared", [3, "zero_sizes", ["zero_sizes"], attention], ids=["a number", "a text", "a list", "a function"])
def test_what_is_no_mapping_is_no_declaration(declared: Any) -> None:
    def mine(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v)

    mine.supports = declared  # type: ignore[attr-defined]
    with pytest.raises(CannotRun, match=r"mine: its attribute supports is .*; it maps keys to values"):
        make_target("mine", mine)


def test_a_parameter_that_no_contract_has_is_named() -> None:
    with pytest.raises(CannotRun, match=r"supports\['parameters'\] names 'nosuch', which attention\(q, k, v, "):
        make_target("mine", attention, {"parameters": ["is_causal", "nosuch"]})


@pytest.mark.parametrize(
    "facts",
    [{"max_length": 1}, {"mask_kinds": ["bias", "lowest"]}, {"mask_axes": [""]}, {"head_dims": [1]}],
    ids=lambda facts: next(iter(facts)),
)
def test_what_leaves_little_leaves_cases_or_says_why_not(facts: dict[str, Any]) -> None:
    """Every property has cases, or a reason; none an error."""
    target = make_target("mine", attention, {"framework": "numpy", "parameters": ["attn_mask", "is_causal"], **facts})
    for prop in catalogue.select():
        if not inapplicable(target, prop):
            cases(target, prop).validate()


# ---------------------------------------------------------------- known deviations

RIGHT: dict[str, Any] = {
    "targets": ["mine"],
    "properties": ["rows_sum_to_one"],
    "when": "True",
    "kind": "library bug",
    "reason": "",
    "version": "torch 2.13",
    "case": "Case()",
    "shows": "rows_sum_to_one",
}


def test_the_right_entry_is_read() -> None:
    assert deviations._entry(1, RIGHT).shows == "rows_sum_to_one"


@pytest.mark.parametrize("key", deviations.SCHEMA)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(value=ANYTHING)
def test_an_entry_is_read_or_refused_in_a_sentence(key: str, value: Any) -> None:
    try:
        made = deviations._entry(1, {**RIGHT, key: value})
    except ValueError as error:
        assert str(error).startswith("known deviation 1: ") and "\n" not in str(error)
    else:
        kept = getattr(made, key)
        assert isinstance(kept, str | tuple | datetime.date | None) or key == "case"


def test_what_an_entry_must_say() -> None:
    for key in deviations.SCHEMA:
        left = {name: value for name, value in RIGHT.items() if name != key}
        if key in RIGHT:
            with pytest.raises(ValueError, match=f"known deviation 1: the key '{key}' is missing"):
                deviations._entry(1, left)
        else:
            assert deviations._entry(1, left)


CONDITIONS = (
    "__import__('os')",
    "().__class__",
    "[1]",
    "(lambda: 1)()",
    "'a' * 10**9",
    "'a' * 9 == 'aaaaaaaaa'",
    "9 * 'a' == 'aaaaaaaaa'",
    "(1, 2) * 2 == (1, 2, 1, 2)",
    "'a' * 1000000000 == ''",
    "keys ** 9",
    "keys.real",
    "1/0",
)


@pytest.mark.parametrize("when", CONDITIONS)
def test_a_condition_is_not_executed(when: str) -> None:
    with pytest.raises(ValueError, match="known deviation 1: "):
        deviations._entry(1, {**RIGHT, "when": when})


@pytest.mark.parametrize(
    "text", ["deviation = 3", "deviation = [3]", "deviation = [3, {}]", "other = 3", "[deviation]\ntargets = 'mine'", "= ="]
)
def test_a_file_that_holds_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "known.toml").write_text(text)
    with pytest.raises(ValueError, match=r"known\.toml"):
        deviations.read_deviations(tmp_path / "known.toml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    for read in (deviations.read_deviations, Supports.in_file):
        with pytest.raises(ValueError, match="cannot be read: Is a directory"):
            read(tmp_path)


UNREADABLE = {
    "many lists": ("a = " + "[" * 5000 + "]" * 5000, "is nested too deeply"),
    "ten lists": ("a = " + "[" * 10 + "]" * 10, "is nested too deeply"),
    "many tables": (".".join("a" * 3000) + " = 1", "is nested too deeply"),
    "many digits": ("max_length = 1" + "0" * 5000, "is not TOML: a whole number in it has more than 64 bits"),
    "many digits that Python can read": ("max_length = 0x1" + "0" * 5000, "is not TOML: a whole number in it has more than 64 bits"),
    "a few digits more": ("a = [{b = -9223372036854775809}]", "is not TOML: a whole number in it has more than 64 bits"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_told_is_named(name: str, tmp_path: Path) -> None:
    text, says = UNREADABLE[name]
    (tmp_path / "facts.toml").write_text(text)
    for read in (deviations.read_deviations, Supports.in_file):
        with pytest.raises(ValueError) as caught:
            read(tmp_path / "facts.toml")
        assert str(caught.value) == f"{tmp_path / 'facts.toml'} {says}"


def test_a_key_beside_the_table_of_supports_is_named(tmp_path: Path) -> None:
    path = tmp_path / "facts.toml"
    path.write_text('causal = "bottom-right"\n[supports]\nmax_length = 8\n')
    with pytest.raises(ValueError, match=r"facts\.toml: 'causal' stands outside of its table \[supports\]; put it there$"):
        Supports.in_file(path)


def test_what_declares_nothing_is_refused_where_something_must_be() -> None:
    assert some_of(("a", "b"))(()) == "is empty; leave it out, if nothing is to be declared"
    assert some_of(("a", "b"))(("a",)) == "" and some_of(empty=True)(()) == ""
