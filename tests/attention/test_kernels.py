"""Kernels as they are launched are let go where they are right, and refuted with one mistake; what has no backward pass is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from properties.attention.question import sizes_told
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan
from tests.support import kernel_styles

STYLES = {name: f for name, f in vars(kernel_styles).items() if getattr(f, "__module__", "") == kernel_styles.__name__ and name != "attend"}
RIGHT, WRONG = [name for name in STYLES if "__" not in name], [name for name in STYLES if "__" in name]
THEMES = ("softmax", "values", "causality", "symmetry", "scaling", "gradients")


def spoken(function: Callable[..., Any]) -> Target:
    dtype = "float32" if "Tiles" in getattr(function, "__name__", "") else "float64"
    target = make_target("mine", function, {"dtypes": [dtype]})
    return target.kind.handshake(target, "cpu")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", one_in(2, RIGHT))
def test_right_ones_are_let_go(name: str) -> None:
    report = verify_target(spoken(STYLES[name]), select(THEMES), Plan(examples=3, strict=False))
    assert not report.findings and not report.target.wrong
    assert sum(outcome.status == "passed" for outcome in report.outcomes.values()) > 12


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_ones_are_refuted(name: str) -> None:
    target = spoken(STYLES[name])
    asked = [PROPERTIES[name] for name in ("output_is_inside_the_bound", "causal_frontier_is_exact")]
    assert target.wrong or target.differs or verify_target(target, asked, Plan(examples=20, strict=False)).findings
    assert not target.differs or "scaled" in name or "scale" in name


def test_what_it_is_told_is_told() -> None:
    learned = spoken(kernel_styles.everything).learned
    assert learned["seqlen_q"] == "the number of queries" and learned["seqlen_k"] == "the number of keys"
    assert learned["batch_size"] == "the number of sequences" and learned["head_dim"] == "the width of a head"
    assert spoken(kernel_styles.of_matrices).learned["axes"] == "(length, dim), a call for each head"


def test_of_two_lengths_the_second_is_that_of_keys() -> None:
    assert sizes_told(["M", "N", "d"]) == {"M": "l", "N": "s"}
    assert sizes_told(["B", "nh", "N", "d"]) == {"B": "b", "N": "l"}
    assert sizes_told(["seq_len_q", "seq_len_k"]) == {"seq_len_q": "l", "seq_len_k": "s"}


def test_what_takes_whole_tiles_alone_is_not_read_in_other_axes() -> None:
    """In float64 it answers one tile of keys: lengths that are taken for head dims."""
    target = make_target("mine", kernel_styles.InWholeTiles)
    assert target.learned["axes"] == "(batch · heads, length, dim)" and "multiples of 16" in target.learned["multiples"]
    assert "is_causal" in target.parameters  # though it is written as casual


def test_what_raises_where_it_is_causal_has_other_axes() -> None:
    learned = spoken(kernel_styles.matrices_that_take_more).learned
    assert learned["axes"] == "(length, dim), a call for each head" and learned["causal"] == "is_causal, top-left"


class Forward(torch.autograd.Function):
    """Without a backward pass, as kernels for inference are."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, causal: Any, sm_scale: Any) -> Any:
        return kernel_styles.attend(q, k, v, causal, sm_scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("there is no backward pass")


def test_a_backward_pass_that_always_raises_is_refused() -> None:
    target = spoken(Forward.apply)
    assert target.refuses == {"gradients": "NotImplementedError: there is no backward pass"}
    report = verify_target(target, select(("gradients", "softmax")), Plan(examples=3, strict=False))
    assert not report.findings and report.outcomes["value_gradient_reads_the_weights"].status != "passed"


def test_a_backward_pass_that_raises_at_some_sizes_is_a_finding() -> None:
    class Odd(Forward):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if grad.shape[2] % 2 == 0:
                raise RuntimeError("an even number of queries")
            return grad, grad, grad, None, None

    assert "gradients" not in spoken(Odd.apply).refuses


def test_a_declared_gradient_stays_a_claim() -> None:
    target = make_target("mine", Forward.apply, {"dtypes": ["float64"], "gradients": True})
    assert not target.kind.handshake(target, "cpu").refuses
