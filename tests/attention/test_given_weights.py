"""Functions that are given the weights of their projections are let go where they are right, and refuted with one mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from properties.attention.given_weights import part_of
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import CannotRun, Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan
from tests.support import weight_styles

STYLES = {
    name: f for name, f in vars(weight_styles).items() if callable(f) and name != "softmax" and f.__module__ == weight_styles.__name__
}
RIGHT = [name for name in STYLES if "__" not in name]
THEMES = ("softmax", "values", "masks", "causality", "heads", "scaling")
WRONG = [name for name in STYLES if "__" in name]


def spoken(function: Callable[..., Any]) -> Target:
    target = make_target("mine", function, {"dtypes": ["float64"]})
    return target.kind.handshake(target, "cpu")


def verdict(name: str, cases: int) -> Report:
    return verify_target(spoken(STYLES[name]), select(THEMES), Plan(examples=cases, strict=False))


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", one_in(3, RIGHT))
def test_right_ones_are_let_go(name: str) -> None:
    report = verdict(name, 3)
    assert not report.findings
    assert sum(outcome.status == "passed" for outcome in report.outcomes.values()) > 12


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", one_in(3, WRONG))
def test_wrong_ones_are_refuted(name: str) -> None:
    report = verify_target(spoken(STYLES[name]), [PROPERTIES["output_is_inside_the_bound"]], Plan(examples=20, strict=False))
    masked = verify_target(spoken(STYLES[name]), [PROPERTIES["masked_keys_are_deleted"]], Plan(examples=20, strict=False))
    assert report.target.wrong or report.findings or masked.findings


def test_what_is_right_for_wide_weights_alone_is_one_finding() -> None:
    target = spoken(weight_styles.one_head__scaled_by_the_tokens)
    assert list(target.wrong) == ["weights"] and "is its scale that of the tokens?" in target.wrong["weights"]
    assert not spoken(weight_styles.multi_head).wrong and not spoken(weight_styles.one_head).wrong


def test_what_was_learned_is_told() -> None:
    assert spoken(weight_styles.multi_head).learned["weights"] == (
        "W_q, W_k, W_v, W_o (in, out) pick queries, keys and values, which lie side by side in X; as wide as the tokens, "
        "4 times as wide as queries"
    )
    told = spoken(weight_styles.linear_with_biases).learned
    assert "(out, in)" in told["weights"] and "biases are 0" in told["weights"]
    assert told["n_head"] == "the number of heads"


def test_a_name_that_is_not_defined_is_told() -> None:
    def attention(x: Any, w_q: Any, w_k: Any, w_v: Any) -> Any:
        return maths.softmax(x @ w_q @ (x @ w_k).T) @ (x @ w_v)  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(CannotRun, match="one call raised NameError: name 'maths' is not defined"):
        spoken(attention)


def test_the_weights_are_exact() -> None:
    """What is asked in this way is the attention of the operands, bit for bit."""
    target = spoken(weight_styles.one_head)
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 1, 6, dim)) * 1e3 for dim in (4, 4, 3))
    direct = weight_styles.softmax(q @ k.swapaxes(2, 3) / np.sqrt(4)) @ v
    assert np.abs(np.asarray(target.function(q, k, v)) - direct).max() < 1e-12 * np.abs(direct).max()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *[(name, "q") for name in ("W_q", "Wq", "wQ", "W_query", "query_weight", "q_proj_weight", "kernel_q", "queryKernel", "q_w")],
        *[(name, "o") for name in ("W_o", "Wo", "W_out", "out_proj_weight", "proj_weight", "W0", "c_proj_weight")],
        *[(name, "qkv") for name in ("W_qkv", "in_proj_weight", "c_attn_weight")],
        *[(name, "") for name in ("q", "query", "x", "window", "mask", "out", "key", "weighted")],
        ("w_kv", "kv"),
        ("Wv", "v"),
        ("W_K", "k"),
    ],
)
def test_names(name: str, part: str) -> None:
    assert part_of(name) == part


def test_weights_of_queries_alone_are_no_projections() -> None:
    def attention(x: Any, w_q: Any) -> Any:
        return x @ w_q

    with pytest.raises(CannotRun):
        spoken(attention)
