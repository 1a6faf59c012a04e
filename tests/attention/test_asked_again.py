"""What raises where the handshake asks, and answers wrongly elsewhere, does not pass; what refuses always, or answers rightly, does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from nightly import one_in

from impls import numpy_matmul
from properties import parametrize_with_properties, verify, verify_pair
from properties.catalogue import select
from properties.engine.core.target import Target
from properties.engine.doors.known import known_of
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

RIGHT = numpy_matmul.attention


def refuse(when: bool) -> None:
    if when:
        raise NotImplementedError("too small")


def causality(right: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        refuse(is_causal and q.shape[2] < 12)
        return RIGHT(q, k, v, is_causal=is_causal and right)

    return attention


def scale_(right: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any, scale: float | None = None) -> Any:
        refuse(scale is not None and q.shape[2] < 12)
        return RIGHT(q, k, v, scale=scale if right else None)

    return attention


def masks(right: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
        refuse(attn_mask is not None and q.shape[2] < 7)
        return RIGHT(q, k, v, attn_mask=attn_mask if right else None)

    return attention


def kinds(right: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
        is_bool = attn_mask is not None and attn_mask.dtype == bool
        refuse(is_bool and q.shape[2] < 7)
        return RIGHT(q, k, v, attn_mask=attn_mask if right or not is_bool else None)

    return attention


def dtypes(right: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any) -> Any:
        refuse(q.dtype != np.float64 and q.shape[2] < 20)
        return RIGHT(q, k, v) * q.dtype.type(right or q.dtype == np.float64)

    return attention


def lengths(right: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any) -> Any:
        longest = max(q.shape[2], k.shape[2])
        refuse(longest > 20 and longest % 64 > 0)
        return RIGHT(q, k, v) * (1.0 if right or longest <= 20 else 1.5)

    return attention


def widths(right: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any) -> Any:
        refuse(q.shape[3] != v.shape[3] and q.shape[3] < 24)
        return RIGHT(q, k, v) * (1.0 if right or q.shape[3] == v.shape[3] else 1.5)

    return attention


def single(right: bool) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        wide = q.dtype == np.float64
        q, k, v = (x.astype(np.float32) if wide else x for x in (q, k, v))
        out = RIGHT(q, k, v, is_causal=is_causal) * q.dtype.type(1.0 if right or not wide or k.shape[2] < 16 else 1.5)
        return out.astype(np.float64) if wide else out

    return attention


MADE = {
    "is_causal": causality,
    "scale": scale_,
    "attn_mask": masks,
    "other kinds of masks": kinds,
    "float32 and float16": dtypes,
    "longer sequences": lengths,
    "values of another width than keys": widths,
    "float64": single,
}


def spoken(function: Callable[..., Any]) -> Target:
    target = make_target("mine", function, {"framework": "numpy"})
    return target.kind.handshake(target, "cpu")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(("what", "right"), one_in(3, product(MADE, [True, False])))
def test_what_it_refuses_is_asked_again_in_calls_of_any_size(what: str, right: bool) -> None:
    target = spoken(MADE[what](right))
    assert what in target.left
    report = verify_target(target, select(("values", "output_is_inside_the_bound")), Plan(examples=4, strict=False))
    assert not report.findings
    assert report.ok is right, report.incomplete
    if not right:
        did = "computes float64 in float32" if what == "float64" else f"refuses {what}"
        assert report.incomplete.startswith(f"it {did} in the calls that it is asked first, and answers others wrongly: Case(")


def test_a_corner_is_told_where_lengths_are_multiples() -> None:
    """Also where its frontier ends at neither, as where the block of the diagonal is not masked."""

    def attention(q: Any, k: Any, v: Any, causal: bool = True) -> Any:
        refuse(q.shape[2] % 16 > 0 or k.shape[2] % 16 > 0)
        rows, columns = np.indices((q.shape[2], k.shape[2]))
        seen = np.where(rows // 16 >= columns // 16, 0.0, -np.inf) if causal else np.zeros(rows.shape)
        return RIGHT(q, k, v, attn_mask=seen.astype(q.dtype))

    report = verify_target(spoken(attention), select(("causality", "output_is_inside_the_bound")), Plan(examples=4, strict=False))
    assert report.findings or report.target.wrong


def folding(width: bool, ignores: bool) -> Callable[..., Any]:
    """As Keras folds causality into a bool mask, and hands one that is added on to what does not take it; ``width``: of other values alone."""

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        added = attn_mask is not None and attn_mask.dtype != bool
        refuse(added and is_causal and (not width or v.shape[3] != q.shape[3]))
        return RIGHT(q, k, v, attn_mask=attn_mask, is_causal=is_causal and not (ignores and attn_mask is not None))

    return attention


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("width", [False, True])
@pytest.mark.parametrize("ignores", [False, True])
def test_a_refusal_of_one_kind_of_masks_beside_causality_hides_nothing_of_the_other(ignores: bool, width: bool) -> None:
    properties = ("values", "masks_compose", "output_is_inside_the_bound", "calls_between_change_nothing")
    report = verify_target(spoken(folding(width, ignores)), select(properties), Plan(examples=30, strict=False))
    assert any("added together with is_causal" in words for words in report.target.refuses)
    assert report.ok is not ignores and not any("NotImplementedError" in finding.violation.says for finding in report.findings)


def test_what_is_on_record_is_known_in_the_types_that_a_target_takes() -> None:
    """A deviation whose case is of float64, of what takes float32 alone."""
    torch = pytest.importorskip("torch")

    def single(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None) -> Any:
        refuse(q.dtype == torch.float64)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)

    target = make_target("mine", single, {"framework": "torch"})
    known = known_of(target.kind.handshake(target, "cpu"))
    assert known and all(deviation.case.dtype in target.dtypes for deviation in known)


def test_a_gradient_is_asked_again() -> None:
    torch = pytest.importorskip("torch")

    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            ctx.save_for_backward(q, k, v)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            refuse(ctx.saved_tensors[0].shape[2] < 7)
            return tuple(torch.full_like(x, 5.0) for x in ctx.saved_tensors)

    target = make_target("mine", lambda q, k, v: Constant.apply(q, k, v), {"framework": "torch", "dtypes": ["float64"]})
    target = target.kind.handshake(target, "cpu")
    plan = Plan(examples=4, strict=False, deviations=known_of(target))
    report = verify_target(target, select(("values", "gradients_are_inside_the_bound")), plan)
    assert "it refuses gradients in the calls" in report.incomplete


def test_it_is_asked_again_where_the_search_takes_all_of_the_time() -> None:
    report = verify_target(spoken(causality(False)), select(("output_is_inside_the_bound",)), Plan(examples=4, strict=False), seconds=1.0)
    assert "it refuses is_causal" in report.incomplete and not report.ok


def test_a_pair_is_asked_again() -> None:
    """By any door: as the reference, which refuses nothing."""
    for right in (True, False):
        verdict = verify_pair(causality(right), RIGHT, cases=4)
        assert verdict.ok is right and ("it refuses is_causal" in verdict.report.incomplete) is not right


def test_every_door_asks_again() -> None:
    verdict = verify(causality(False), properties=("values", "output_is_inside_the_bound"), cases=4, supports={"framework": "numpy"})
    assert not verdict.ok and "it refuses is_causal" in verdict.report.incomplete
    mark = parametrize_with_properties({"mine": causality(False)}, properties=("output_is_inside_the_bound",), cases=4)
    made = {parameter.id: parameter.values[0] for parameter in mark.args[1]}  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="it refuses is_causal in the calls that it is asked first"):
        made["mine-conventions"]()
