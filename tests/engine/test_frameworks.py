"""Arrays in every layout hold the carrier's numbers and lie as they say; rounding is that of the hardware's types."""

from __future__ import annotations

import functools
import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import some_by_night

from properties.engine import frameworks
from properties.engine.cases.coordinates import normal
from properties.engine.cases.dtypes import DTYPES, FLOAT_TYPES, round_to
from properties.engine.frameworks import LAYOUTS, Buffers, framework, likely_frameworks, no_device

Array = Any
NAMES = ("numpy", "torch")
PLAIN = tuple(layout for layout in LAYOUTS if layout not in ("mixed", "expanded"))  # mixed: a layout of its own for each
SHAPES = ((2, 3, 4, 5), (1, 1, 1, 1), (2, 1, 3, 1), (3, 4), (0, 2, 3, 4), (2, 2, 0, 3), (2, 2, 3, 0), (5,), ())


def strides(array: Any) -> tuple[int, ...]:
    """In elements."""
    return array.stride() if isinstance(array, torch.Tensor) else tuple(s // array.itemsize for s in array.strides)


def surroundings(array: Any) -> Array:
    """All of the memory in which a view lies, as one row of float64 (or bool)."""
    if isinstance(array, torch.Tensor):
        count = array.untyped_storage().nbytes() // array.element_size()
        whole = torch.empty(0, dtype=array.dtype).set_(array.untyped_storage(), 0, (count,), (1,))
        return whole.to(torch.bool if array.dtype == torch.bool else torch.float64).numpy()
    while array.base is not None:
        array = array.base
    return np.asarray(array, dtype=bool if array.dtype == bool else np.float64).ravel(order="K")


def carrier_of(shape: tuple[int, ...], dtype: str) -> Array:
    return round_to(dtype, normal(1, "x", shape) if shape else np.array(0.75))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", PLAIN)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_holds_the_numbers(name: str, layout: str, shape: tuple[int, ...]) -> None:
    fw = framework(name)
    for dtype in fw.dtypes:
        carrier = carrier_of(shape, dtype)
        array = Buffers(fw).array("q", carrier, dtype, "cpu", layout)
        assert fw.is_array(array) and fw.describe(array) == (shape, dtype, "cpu")
        np.testing.assert_array_equal(fw.read(array), carrier, strict=True)
        around = surroundings(array)
        visible = around[~np.isnan(around)]
        assert len(visible) == carrier.size  # all that is not the view is NaN
        assert sorted(visible.tolist()) == sorted(carrier.reshape(-1).tolist())
    seen = carrier_of(shape, "float64") > 0
    mask = Buffers(fw).array("mask", seen, "float32", "cpu", layout)
    assert fw.describe(mask) == (shape, "bool", "cpu")
    np.testing.assert_array_equal(fw.read(mask), seen, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_layouts_lie_as_they_say(name: str) -> None:
    """Strides and the size of the memory, for (B, H, L, D) = (2, 3, 4, 5)."""
    fw = framework(name)
    carrier = carrier_of((2, 3, 4, 5), "float32")
    claims = {
        "contiguous": ((60, 20, 5, 1), 120, 0),
        "transposed": ((60, 5, 15, 1), 120, 0),
        "padded": ((3 * 6 * 8, 6 * 8, 8, 1), 2 * 3 * 6 * 8, 9),
        "strided": ((120, 40, 10, 2), 240, 0),
        "every_other_row": ((120, 40, 10, 1), 240, 0),
        "feature_major": ((60, 20, 1, 4), 120, 0),
        "offset": ((60, 20, 5, 1), 121, 1),
    }
    assert set(claims) == set(PLAIN)
    for layout, (steps, count, start) in claims.items():
        array = Buffers(fw).array("q", carrier, "float32", "cpu", layout)
        around = surroundings(array)
        assert (strides(array), around.size) == (steps, count), layout
        flat = [int(i) for i in np.flatnonzero(around == carrier[0, 0, 0, 0])]
        assert start in flat, layout
    array = Buffers(fw).array("k", np.broadcast_to(carrier[:1], carrier.shape), "float32", "cpu", "expanded")
    assert strides(array) == (0, 20, 5, 1) and surroundings(array).size == 60
    np.testing.assert_array_equal(fw.read(array), np.broadcast_to(carrier[:1], carrier.shape))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", [*PLAIN, "expanded"])
def test_buffers_use_the_same_memory_again(name: str, layout: str) -> None:
    """The same name, shape, dtype and layout: the same array with other numbers. Anything else: another array."""
    fw, one = framework(name), carrier_of((2, 3, 4, 5), "float32")
    one = np.broadcast_to(one[:1], one.shape) if layout == "expanded" else one
    buffers = Buffers(fw)
    first = buffers.array("q", one, "float32", "cpu", layout)
    again = buffers.array("q", -one, "float32", "cpu", layout)
    assert again is first
    np.testing.assert_array_equal(fw.read(first), -one)
    for other in (
        buffers.array("k", one, "float32", "cpu", layout),
        buffers.array("q", one, "float64", "cpu", layout),
        buffers.array("q", one[:, :2], "float32", "cpu", layout),
        Buffers(fw).array("q", one, "float32", "cpu", layout),
    ):
        assert other is not first and not fw.shares_memory(other, first)
    np.testing.assert_array_equal(fw.read(first), -one)  # untouched
    assert dict(buffers.contents()).keys() == {"q", "k"} and len(buffers.contents()) == 4


@pytest.mark.parametrize("name", NAMES)
def test_sharing_memory_is_seen(name: str) -> None:
    fw = framework(name)
    whole = fw.full((2, 3, 4), 1.0, "float32", "cpu")
    assert fw.shares_memory(whole, whole) and fw.shares_memory(whole[0], whole)
    assert fw.shares_memory(fw.permute(whole, (2, 1, 0)), whole)
    assert not fw.shares_memory(fw.full((2, 3, 4), 1.0, "float32", "cpu"), whole)
    assert not fw.shares_memory(fw.full((0, 3), 1.0, "float32", "cpu"), fw.full((0, 3), 1.0, "float32", "cpu"))


@pytest.mark.parametrize("name", NAMES)
def test_reading_makes_a_copy(name: str) -> None:
    fw = framework(name)
    array = fw.full((2, 3), 1.0, "float64", "cpu")
    read = fw.read(array)
    read[...] = 7
    assert (fw.read(array) == 1).all() and read.dtype == np.float64
    assert fw.read(fw.full((2,), 1.0, "bool", "cpu")).dtype == np.bool_


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5])


@pytest.mark.parametrize("name", NAMES)
def test_carriers_come_back_bit_for_bit(name: str) -> None:
    """Subnormals, signed zeros, infinities, NaN and the largest numbers too."""
    fw = framework(name)
    for dtype in fw.dtypes:
        kind = FLOAT_TYPES[dtype]
        carrier = np.concatenate([SPECIAL, [kind.max, -kind.max, kind.tiny, kind.subnormal, -kind.subnormal, 3 * kind.subnormal]])
        array = Buffers(fw).array("v", carrier, dtype, "cpu", "contiguous")
        back = fw.read(array)
        np.testing.assert_array_equal(back, carrier, strict=True)
        assert (np.signbit(back) == np.signbit(carrier))[~np.isnan(carrier)].all()


def test_the_limits_of_the_types() -> None:
    for dtype in DTYPES:
        kind, info = FLOAT_TYPES[dtype], torch.finfo(getattr(torch, dtype))
        assert (kind.max, kind.tiny) == (info.max, info.tiny)
        assert 2.0 ** (1 - kind.precision) == info.eps
        assert kind.subnormal == info.tiny * info.eps


def interesting(dtype: str) -> st.SearchStrategy[float]:
    """Anything; and near ties between two numbers of the type, subnormal ones and the limit included."""
    kind = FLOAT_TYPES[dtype]
    lowest = round(math.log2(kind.subnormal))

    def near_tie(exponent: int, odd: int, nudge: int) -> float:
        with np.errstate(over="ignore"):
            tie = math.ldexp(odd + 0.5, max(exponent, lowest)) if exponent < 1000 else kind.max
        return tie + nudge * math.ulp(tie)

    ties = st.builds(
        near_tie, st.integers(lowest, kind.max_exponent - kind.precision + 1), st.integers(0, 2**kind.precision - 1), st.integers(-1, 1)
    )
    return st.one_of(st.floats(width=64), ties, ties.map(lambda x: -x), st.floats(-8 * kind.tiny, 8 * kind.tiny))


def expected(dtype: str, x: float) -> float:
    """What PyTorch makes of it."""
    return float(torch.tensor([x], dtype=torch.float64).to(getattr(torch, dtype)).double()[0])


@pytest.mark.parametrize("dtype", some_by_night(("float32", "float16", "bfloat16"), ("bfloat16",)))
def test_rounding_is_that_of_torch(dtype: str) -> None:
    kind = FLOAT_TYPES[dtype]
    step = kind.max * 2.0**-kind.precision  # beyond the largest number by half a step and more is infinite
    half_beyond = kind.max + 2.0 ** (kind.max_exponent - kind.precision)

    @settings(max_examples=1500, deadline=None, database=None)
    @given(interesting(dtype))
    @example(kind.max)
    @example(kind.max + step)
    @example(half_beyond)
    @example(math.nextafter(half_beyond, 0))
    @example(kind.subnormal / 2)
    @example(kind.subnormal / 2 * (1 + 2.0**-40))
    @example(-kind.subnormal * 1.5)
    @example(-0.0)
    @example(math.inf)
    @example(math.nan)
    def check(x: float) -> None:
        if dtype == "float16":  # PyTorch rounds float64 to float16 by way of float32, twice; we round once
            with np.errstate(over="ignore"):
                x = float(np.float32(x))
        (got,) = round_to(dtype, np.array([x])).tolist()
        want = expected(dtype, x)
        assert got == want or (math.isnan(got) and math.isnan(want))
        assert math.isnan(got) or math.copysign(1, got) == math.copysign(1, want)
        if not math.isnan(got):
            assert round_to(dtype, np.array([got])).tolist() == [got]  # once is enough

    check()


def test_float16_is_rounded_once() -> None:
    """Just above the tie between 1 and 1 + 2^-10: by way of float32 it would become the tie, and then 1."""
    assert round_to("float16", np.array([1 + 2.0**-11 + 2.0**-40])).tolist() == [1 + 2.0**-10]
    assert expected("float16", 1 + 2.0**-11 + 2.0**-40) == 1


def test_rounding_to_float64_changes_nothing() -> None:
    x = np.array([1 / 3, 5e-324, -0.0, np.inf])
    assert round_to("float64", x) is x


def test_frameworks_are_found_by_name_and_by_module() -> None:
    assert [framework(name).name for name in NAMES] == list(NAMES)
    with pytest.raises(ValueError, match=r"^unknown framework 'jaxx'; known: numpy, torch, jax, mlx$"):
        framework("jaxx")
    assert likely_frameworks(torch.nn.functional.scaled_dot_product_attention)[0] == "torch"
    assert likely_frameworks(np.matmul)[0] == "numpy"
    assert likely_frameworks(len)[:2] == NAMES


def test_of_two_that_a_module_imports_a_function_has_the_one_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("both")
    code = "def one(q):\n    return [torch.ones(1) for _ in q]\ndef other(q):\n    return jnp.ones(1)\ndef neither(q):\n    return q"
    vars(module).update(torch=torch, jnp=ModuleType("jax.numpy"))
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, "both", module)
    assert [likely_frameworks(getattr(module, name))[0] for name in ("one", "other")] == ["torch", "jax"]
    wrapped = functools.wraps(module.one)(functools.partial(module.one))
    assert likely_frameworks(wrapped)[0] == "torch" and {*likely_frameworks(module.neither)[:2]} == {"jax", "torch"}


@pytest.mark.parametrize("node, imported", [("null", []), ("nvme0", []), ("nvidiactl", ["a_library"]), ("dxg", ["a_library"])])
def test_no_library_is_imported_to_find_a_gpu_where_the_system_has_none(
    monkeypatch: pytest.MonkeyPatch, node: str, imported: list[str]
) -> None:
    """PyTorch takes two seconds of everybody whose file cannot be imported."""
    asked: list[str] = []

    def without(name: str) -> None:
        asked.append(name)
        raise ImportError(name)

    monkeypatch.setattr(frameworks, "frameworks", lambda: ("a_library",))
    monkeypatch.setattr(frameworks, "framework", without)
    monkeypatch.setattr(frameworks.sys, "platform", "linux")
    monkeypatch.setattr(frameworks.os, "listdir", lambda path: [node, "zero"])
    assert no_device("cuda:1").startswith("there is no device 'cuda:1' here")
    assert asked == imported
    assert no_device("tpu") and asked == [*imported, "a_library"]
