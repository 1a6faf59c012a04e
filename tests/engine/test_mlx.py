"""MLX: arrays are what they should be, right attentions hold, wrong ones are refuted, also from another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core")

from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.cases.dtypes import FLOAT_TYPES
from properties.engine.core.attempt import try_case
from properties.engine.doors.cli import main
from properties.engine.frameworks import Buffers, Framework, framework, likely_frameworks
from properties.engine.search.find_target import ALWAYS, Builtins, containing, find_targets
from properties.engine.search.probe import make_target

MLX = framework("mlx")
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5])
KERNELS = """
import mlx.core as mx


def right(q, k, v, scale=None, mask=None):
    s = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ mx.swapaxes(k, -1, -2)
    if mask is not None:
        s = mx.where(mask, s, -mx.inf) if mask.dtype == mx.bool_ else s + mask
    return mx.softmax(s, axis=-1, precise=True) @ v


def larger(q, k, v, scale=None, mask=None):
    return right(q, k, v, scale, mask) * 1.01


def writes(q, k, v):
    out = right(q, k, v)
    q[..., 0] = 0
    return out


@mx.custom_function
def cut(x):
    return x


@cut.vjp
def _(given, pushed, out):
    return mx.zeros_like(given)


def no_gradient(q, k, v):
    return right(cut(q), k, v)
"""


@pytest.mark.parametrize("fw", [MLX, MLX.elsewhere()], ids=["here", "elsewhere"])
@pytest.mark.parametrize("dtype", MLX.dtypes)
def test_carriers_come_back_bit_for_bit(fw: Framework, dtype: str) -> None:
    kind = FLOAT_TYPES[dtype]
    carrier = np.concatenate([SPECIAL, [kind.max, -kind.max, kind.tiny, kind.subnormal, -kind.subnormal, 3 * kind.subnormal]])
    array = Buffers(fw).array("v", carrier, dtype, "cpu", "contiguous")
    back = fw.read(array)
    assert fw.is_array(array) and fw.describe(array) == (carrier.shape, dtype, "cpu")
    np.testing.assert_array_equal(back, carrier, strict=True)
    assert (np.signbit(back) == np.signbit(carrier))[~np.isnan(carrier)].all()


@pytest.mark.parametrize("fw", [MLX, MLX.elsewhere()], ids=["here", "elsewhere"])
def test_arrays_are_moved_and_repeated(fw: Framework) -> None:
    carrier = np.arange(24.0).reshape(2, 3, 4)
    array = Buffers(fw).array("q", carrier, "float32", "cpu", "strided")
    np.testing.assert_array_equal(fw.read(fw.permute(array, (2, 0, 1))), carrier.transpose(2, 0, 1))
    np.testing.assert_array_equal(fw.read(fw.expand(array[:, :1], (2, 5, 4))), np.broadcast_to(carrier[:, :1], (2, 5, 4)))
    np.testing.assert_array_equal(fw.read(fw.concatenate([array, array], 1)), np.concatenate([carrier, carrier], 1))
    assert fw.read(fw.stack([array, array])).shape == (2, 2, 3, 4)
    assert fw.describe(fw.integers(np.arange(3.0), "cpu")) == ((3,), "int64", "cpu")
    assert fw.read(fw.full((), 1.0, "bool", "cpu")).dtype == np.bool_ and fw.describe(fw.full((), 1.0, "float32", "cpu"))[0] == ()


def test_random_numbers_go_on_as_before() -> None:
    mx.random.seed(5)
    MLX.drawn()
    with MLX.chance(3):
        first = MLX.drawn()
    after = MLX.drawn()
    mx.random.seed(5)
    MLX.drawn()
    with MLX.chance(3):
        assert MLX.drawn() == first
    assert MLX.drawn() == after


def test_float64_is_left_out_where_its_exponential_is_that_of_float32() -> None:
    off = abs(mx.exp(mx.array(-3.3, dtype=mx.float64)).item() / np.exp(-3.3) - 1)
    assert ("float64" in MLX.dtypes) == (off < 1e-14)


def test_gradients_are_those_of_the_function() -> None:
    x = mx.array([1.0, 2.0, 3.0])
    out, back = MLX.record(lambda x: (x * x, x.sum()), [x])
    assert back is not None and [MLX.asks(y) for y in out] == [True, True] and not MLX.asks(x)
    np.testing.assert_array_equal(MLX.read(back([mx.ones_like(x), None])[0]), [2, 4, 6])


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


SOME = ("--property", "numbers", "--property", "gradients_are_inside_the_bound", "--property", "inputs_are_unchanged", "--cases", "12")


@pytest.mark.parametrize("door", [[], ["--in-process"]], ids=["contained", "in process"])
@pytest.mark.parametrize(
    ("name", "refuted"),
    [
        ("right", ""),
        ("larger", "output_is_inside_the_bound"),
        ("writes", "inputs_are_unchanged"),
        ("no_gradient", "gradients_are_inside_the_bound"),
        ("right@compile", ""),
    ],
)
def test_the_command_line(name: str, refuted: str, door: list[str], kernels: None, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([f"kernels.py:{name}", *SOME, *door])
    out = capsys.readouterr().out
    assert status == bool(refuted) and "mlx" in out, out
    assert not refuted or f"REFUTED  {refuted}" in out or f"  refuted   {refuted}" in out, out


def test_a_function_of_a_file_that_imports_it_is_tried_with_it() -> None:
    def function(q: Any) -> Any:
        return mx.softmax(q)

    assert likely_frameworks(function)[0] == "mlx"


def test_a_softmax_of_bfloat16_that_rounds_every_sum_is_told() -> None:
    """512 equal weights of MLX's own sum to two, unless it is asked to be precise."""

    def attention(q: Any, k: Any, v: Any, *, precise: bool = False) -> Any:
        return mx.softmax(q @ mx.swapaxes(k, -1, -2) * max(q.shape[-1], 1) ** -0.5, axis=-1, precise=precise) @ v

    plain, precise = (
        target.kind.handshake(target, "cpu")
        for target in (
            make_target("plain", attention, {"zero_sizes": False}),
            make_target("precise", lambda q, k, v: attention(q, k, v, precise=True), {"framework": "mlx", "zero_sizes": False}),
        )
    )
    assert plain.supports.arithmetic["bfloat16"] == "same" and "as by MLX's softmax" in plain.differs["sums of bfloat16"]
    assert not precise.supports.arithmetic and "sums of bfloat16" not in precise.differs


ROW_BY_ROW = """
import mlx.core as mx


def attention(q, k, v):
    rows = mx.arange(q.shape[1])[:, None] + (k.shape[1] - q.shape[1]) >= mx.arange(k.shape[1])[None]
    s = mx.where(rows, q @ k.transpose(0, 2, 1) * max(q.shape[-1], 1) ** -0.5, -mx.inf)
    return mx.softmax(s, axis=-1, precise=True) @ v
"""


def test_several_calls_without_numbers_have_a_gradient_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here holds an array of no numbers; its graph over there is kept until it was asked."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(ROW_BY_ROW)
    with containing(ALWAYS):
        (target,) = find_targets("mine.py:attention", Builtins())
    target = target.kind.handshake(target, "cpu")
    case = Case(batch=0, queries=2, keys=7, dim=2, dtype="float32")
    assert "always" in target.learned["causality"] and try_case(target, PROPERTIES["gradients_add_up"], case) is None
