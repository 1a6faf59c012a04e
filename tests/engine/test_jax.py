"""JAX: arrays are what they should be, right attentions hold, wrong ones are refuted, under its transformations too."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from impls.catalogue import CATALOGUE
from impls.jax_manual import attention
from properties import catalogue
from properties.attention.cases import Case
from properties.catalogue import PROPERTIES
from properties.engine.cases.coordinates import normal
from properties.engine.cases.dtypes import FLOAT_TYPES, round_to
from properties.engine.contained.link import Link
from properties.engine.core.target import CannotRun, Target
from properties.engine.doors.cli import main
from properties.engine.frameworks import Buffers, framework, likely_frameworks, make_variant
from properties.engine.search.find_target import ALWAYS, Builtins, containing, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search, try_only

JAX = framework("jax")
BUILTINS = Builtins()
BUILT_IN = [entry.name for entry in CATALOGUE if "jax" in entry.needs]
FACTS = {"framework": "jax", "dtypes": ["float64", "float32"], "arithmetic": {"float64": "same", "float32": "same"}}


def finds(function: Any, prop: str, cases: int = 12, **facts: Any) -> Any:
    return search(make_target("mine", function, {**FACTS, **facts}), PROPERTIES[prop], Plan(examples=cases, shrink=False)).finding


# ---------------------------------------------------------------- arrays

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5])


@pytest.mark.parametrize("dtype", JAX.dtypes)
def test_carriers_come_back_bit_for_bit(dtype: str) -> None:
    kind = FLOAT_TYPES[dtype]
    carrier = np.concatenate([SPECIAL, [kind.max, -kind.max, kind.tiny, kind.subnormal, -kind.subnormal, 3 * kind.subnormal]])
    array = Buffers(JAX).array("v", carrier, dtype, "cpu", "contiguous")
    back = JAX.read(array)
    assert JAX.is_array(array) and JAX.describe(array) == (carrier.shape, dtype, "cpu")
    np.testing.assert_array_equal(back, carrier, strict=True)
    assert (np.signbit(back) == np.signbit(carrier))[~np.isnan(carrier)].all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_is_that_of_jax(dtype: str) -> None:
    x = normal(3, "x", (2000,)) * 2.0 ** np.linspace(-20, 10, 2000)
    single = x.astype(np.float32).astype(np.float64)  # JAX makes halves of float32
    np.testing.assert_array_equal(round_to(dtype, single), JAX.read(jnp.asarray(single, dtype=jnp.float32).astype(dtype)))


def test_arrays_are_moved_and_repeated() -> None:
    carrier = normal(1, "x", (2, 3, 4))
    array = Buffers(JAX).array("q", carrier, "float64", "cpu", "strided")
    np.testing.assert_array_equal(JAX.read(JAX.permute(array, (2, 0, 1))), carrier.transpose(2, 0, 1))
    np.testing.assert_array_equal(JAX.read(JAX.expand(array[:, :1], (2, 5, 4))), np.broadcast_to(carrier[:, :1], (2, 5, 4)))
    assert JAX.describe(JAX.integers(np.arange(3.0), "cpu")) == ((3,), "int64", "cpu")
    assert JAX.read(JAX.full((2,), 1.0, "bool", "cpu")).dtype == np.bool_
    assert JAX.layouts == ("contiguous",) and "cpu" in JAX.devices()


def test_what_is_written_does_not_reach_an_array_that_was_given() -> None:
    buffers = Buffers(JAX)
    first = buffers.array("q", np.ones((2, 3)), "float32", "cpu", "contiguous")
    second = buffers.array("q", np.full((2, 3), 2.0), "float32", "cpu", "contiguous")
    assert (JAX.read(first) == 1).all() and (JAX.read(second) == 2).all() and not JAX.shares_memory(first, first)


def test_a_carrier_that_is_changed_later_changes_no_array() -> None:
    carrier = np.ones((64, 64))
    array = Buffers(JAX).array("q", carrier, "float64", "cpu", "contiguous")
    carrier[...] = 7
    assert (JAX.read(array) == 1).all()


def test_jax_is_found_by_what_a_module_imports() -> None:
    assert likely_frameworks(attention)[0] == "jax" and "jax" in likely_frameworks(len)
    assert make_target("mine", lambda q, k, v: attention(q, k, v)).framework.name == "jax"
    assert likely_frameworks(np.matmul)[0] == "numpy"


# ---------------------------------------------------------------- built-ins


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_ins_hold(name: str) -> None:
    (target,) = find_targets(name, BUILTINS)
    assert set(target.supports.arithmetic or ()) == set(target.dtypes) and target.costly_shapes
    report = verify_target(target, PROPERTIES.values(), Plan(examples=1, deviations=BUILTINS.deviations()))
    assert not report.findings and [status.state for status in report.surprises] == []
    assert len([o for o in report.outcomes.values() if o.cases]) >= 60


def test_the_built_ins_agree_with_the_formula() -> None:
    case = Case(batch=2, kv_heads=3, group=2, queries=5, keys=5, dim=8, dtype="float32", is_causal=True)
    for name in BUILT_IN:
        (target,) = find_targets(name, BUILTINS)
        assert not try_only(target, PROPERTIES["output_is_inside_the_bound"], case).finding


# ---------------------------------------------------------------- mistakes


def test_a_wrong_frontier_is_refuted() -> None:
    def mine(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        seen = jnp.arange(k.shape[2]) <= jnp.arange(q.shape[2])[:, None] + 1
        return attention(q, k, v, attn_mask=seen if is_causal else None)

    assert finds(mine, "future_tokens_are_ignored")


@jax.custom_vjp
def no_key_gradient(q: Any, k: Any, v: Any) -> Any:
    return attention(q, k, v)


def _forward(q: Any, k: Any, v: Any) -> Any:
    return jax.vjp(attention, q, k, v)


def _backward(pull: Any, grad: Any) -> Any:
    dq, dk, dv = pull(grad)
    return dq, jnp.zeros_like(dk), dv


no_key_gradient.defvjp(_forward, _backward)


def test_a_wrong_gradient_is_refuted() -> None:
    def mine(q: Any, k: Any, v: Any) -> Any:
        return no_key_gradient(q, k, v)

    finding = finds(mine, "gradients_are_inside_the_bound")
    assert finding and "gradient of k is off" in finding.violation.says
    assert not finds(mine, "output_is_inside_the_bound")


def test_a_gradient_goes_through_what_is_moved_on_the_way() -> None:
    """As where a target has other axes, or takes queries, keys and values in one array."""
    leaves = [JAX.full((2, 3), 2.0, "float64", "cpu"), JAX.full((2, 3), 5.0, "float64", "cpu")]

    def moved(a: Any, b: Any) -> Any:
        both = JAX.concatenate([JAX.stack([a, b]), JAX.expand(JAX.permute(a, (0, 1))[None], (1, 2, 3))], 0)
        assert JAX.describe(both) == ((3, 2, 3), "float64", "cpu")
        return both[0] * both[1] * both[2]

    out, send_back = JAX.record(moved, leaves)
    assert (JAX.read(out) == 20).all() and send_back
    assert [JAX.read(part)[0, 0] for part in send_back(JAX.full((2, 3), 1.0, "float64", "cpu"))] == [20.0, 4.0]


def test_a_user_s_target_is_asked_for_gradients() -> None:
    def mine(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
        return jnp.swapaxes(no_key_gradient(q, k, v), 1, 2)

    target = make_target("mine", mine)
    outcome = search(target, PROPERTIES["gradients_are_inside_the_bound"], Plan(examples=2, shrink=False))
    assert outcome.finding and "gradient of k is off" in outcome.finding.violation.says


def test_what_is_packed_has_gradients() -> None:
    """What a call may have written into the packed array is not looked for where it is traced."""

    def mine(qkv: Any) -> Any:
        return jnp.swapaxes(attention(*(jnp.swapaxes(qkv[:, :, at], 1, 2) for at in range(3))), 1, 2)

    target = make_target("mine", mine, {"zero_sizes": False})
    outcome = search(target.kind.handshake(target, "cpu"), PROPERTIES["gradients_are_inside_the_bound"], Plan(examples=2))
    assert outcome.status == "passed" and outcome.cases == 2, outcome.not_exercised


def test_what_has_no_backward_pass_is_not_asked_for_gradients() -> None:
    def mine(q: Any, k: Any, v: Any) -> Any:
        return jax.pure_callback(lambda *x: np.asarray(attention(*map(jnp.asarray, x))), jax.ShapeDtypeStruct(q.shape, q.dtype), q, k, v)

    outcome = search(make_target("mine", mine, {**FACTS, "value_dim": False}), PROPERTIES["gradients_reach_every_input"], Plan(examples=2))
    assert "gradients: it raised" in outcome.not_exercised


def test_a_gradient_is_sent_back_as_often_as_it_is_asked() -> None:
    leaves = [JAX.full((2, 3), 2.0, "float64", "cpu"), JAX.full((2, 3), 5.0, "float64", "cpu")]
    out, send_back = JAX.record(lambda a, b: a * a * b, leaves)
    assert (JAX.read(out) == 20).all() and send_back
    for again in (True, False):
        parts = send_back(JAX.full((2, 3), 1.0, "float64", "cpu"), again)
        assert [JAX.read(part)[0, 0] for part in parts] == [20.0, 4.0]


def test_arguments_that_are_donated_are_refuted() -> None:
    given = partial(jax.jit, donate_argnums=0)(lambda q, k, v: attention(q, k, v) + 0 * q)

    def mine(q: Any, k: Any, v: Any) -> Any:
        return given(q, k, v)

    finding = finds(mine, "inputs_are_unchanged", value_dim=False)
    assert finding and "q was changed by the call" in finding.violation.says


def test_a_setting_that_is_left_changed_is_refuted() -> None:
    def mine(q: Any, k: Any, v: Any) -> Any:
        jax.config.update("jax_default_matmul_precision", "highest")
        return attention(q, k, v)

    before = jax.config.jax_default_matmul_precision
    finding = finds(mine, "process_is_left_as_it_was", cases=2)
    assert finding and "the precision of products" in finding.violation.says
    assert jax.config.jax_default_matmul_precision == before


# ---------------------------------------------------------------- variants


def seen_through(variant: str, function: Any) -> Target:
    return make_target(f"mine@{variant}", make_variant(JAX, variant, function), {**FACTS, **JAX.variants[variant].narrows})


@pytest.mark.parametrize("variant", JAX.variants)
def test_a_mistake_under_a_variant_is_found_there(variant: str) -> None:
    def mine(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        return attention(q, k, v, is_causal=is_causal, scale=0.05 if isinstance(q, jax.core.Tracer) else None)

    prop = PROPERTIES["output_is_inside_the_bound"]
    assert search(seen_through(variant, mine), prop, Plan(examples=12, shrink=False)).finding
    assert not finds(mine, prop.name, 6)


@pytest.mark.parametrize("variant", JAX.variants)
def test_a_right_attention_is_right_under_every_variant(variant: str) -> None:
    target = seen_through(variant, attention)
    for prop in catalogue.select(("output_is_inside_the_bound", "masked_keys_are_deleted", "gradients_are_inside_the_bound")):
        outcome = search(target, prop, Plan(examples=12))
        assert outcome.status == "passed", outcome.finding


def test_variants_of_jax_are_named() -> None:
    (target,) = find_targets("jax_sdpa.masked@jit", BUILTINS, {"dtypes": ["float32", "bfloat16"]})
    assert target.name == "jax_sdpa.masked@jit" and target.costly_shapes and target.dtypes == ("float32", "bfloat16")
    with pytest.raises(CannotRun, match="there are jit, vmap"):
        find_targets("jax_sdpa.masked@compile_it", BUILTINS)


def test_the_process_is_not_forked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jax_manual.attention", "--isolate", "--cases", "1", "--property", "rows_sum_to_one"]) == 2
    assert "which jax does not survive" in capsys.readouterr().err


# ---------------------------------------------------------------- in a process of its own

CONTAINED = """
import os
from functools import partial
import jax, jax.numpy as jnp

def right(q, k, v):
    scores = jnp.einsum("blhd,bshd->bhls", q, k) / jnp.sqrt(q.shape[-1]).astype(q.dtype)
    return jnp.einsum("bhls,bshd->blhd", jax.nn.softmax(scores, axis=-1), v)

@jax.custom_vjp
def no_key_gradient(q, k, v):
    return right(q, k, v)

no_key_gradient.defvjp(lambda *x: jax.vjp(right, *x), lambda pull, g: [(a, 0 * b, c) for a, b, c in [pull(g)]][0])
donates = partial(jax.jit, donate_argnums=0)(lambda q, k, v: right(q, k, v) + 0 * q)

def exits(q, k, v):
    return os._exit(0) if k.shape[1] > 30 else right(q, k, v)

def finds_it(q, k, v):
    return right(q, k, v) * (1 if PARENT == os.getpid() else 1.01)

"""


@pytest.mark.parametrize(
    ("name", "prop", "says"),
    [
        ("right", "", ""),
        ("no_key_gradient", "gradients_are_inside_the_bound", "the gradient of k is off"),
        ("donates", "inputs_are_unchanged", "q was changed by the call"),
        ("exits", "output_is_inside_the_bound", "the call ended the process (exit status 0)"),
        ("finds_it", "output_is_inside_the_bound", ", allowed "),
    ],
)
def test_a_file_is_in_a_process_of_its_own(
    name: str, prop: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is given arrays of JAX there, and does what it likes there; here nothing is compiled for it, and a wrong one is refuted."""
    (tmp_path / "mine.py").write_text(CONTAINED + f"\nPARENT = {os.getpid()}\n")
    monkeypatch.chdir(tmp_path)
    wanted = [prop] if prop else ["output_is_inside_the_bound", "inputs_are_unchanged", "gradients_are_inside_the_bound"]
    arguments = [word for one in wanted for word in ("--property", one)]
    status = main([f"mine.py:{name}", *arguments, "--cases", "12", "-n", "1", "--json", "report.json"])
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    assert report["contained"] and status == bool(prop), capsys.readouterr().out
    assert [name for name, outcome in report["properties"].items() if outcome["status"] == "refuted"] == [prop] * bool(prop)
    assert says in capsys.readouterr().out


LOOKING = """
import jax


def attention(q, k, v):
    if LOOKS and q.sum() > 1e9:
        raise ValueError("too large")
    return jax.nn.softmax(q @ k.mT / q.shape[-1] ** 0.5, axis=-1) @ v
"""


@pytest.mark.parametrize("looks", [False, True])
def test_questions_are_asked_quickly_and_cases_as_it_is(looks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is traced; what looks at a value cannot be, and is asked as it is."""
    (tmp_path / "mine.py").write_text(LOOKING.replace("LOOKS", str(looks)))
    plain = JAX.quickly(lambda q: q + 1 if q.sum() > 0 else q)
    assert plain(jnp.ones(2)).tolist() == [2, 2] and plain(-jnp.ones(2)).tolist() == [-1, -1]
    asked: list[bool] = []
    call = Link.call

    def noted(self: Link, *arguments: Any) -> Any:
        asked.append(self.quick)
        return call(self, *arguments)

    monkeypatch.setattr(Link, "call", noted)
    with containing(ALWAYS):
        (target,) = find_targets(f"{tmp_path / 'mine.py'}:attention", Builtins())
        target = target.kind.handshake(target, "cpu")
    assert target.framework.name == "jax" and asked and all(asked)
    asked.clear()
    assert search(target, PROPERTIES["rows_sum_to_one"], Plan(examples=3)).status == "passed"
    assert asked and not any(asked)
