"""Rotations of queries and keys by tables, as model code has them: recognised, in every form, and wrong ones refuted."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

from properties.catalogue import select
from properties.engine.core.target import CannotRun
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

THEMES = ("positions", "distances")


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> Any:
    pairs = (torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) for x in (xq, xk))
    return tuple(torch.view_as_real(x * freqs_cis[None, :, None].to(torch.complex64)).flatten(3).to(xq.dtype) for x in pairs)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)


def neighbours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def turned(x: Tensor) -> Tensor:
        return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin

    return turned(q), turned(k)


FORMS: dict[str, tuple[Any, dict[str, str]]] = {
    "Hugging Face's": (apply_rotary_pos_emb, {"pairing": "half", "cos, sin": "(batch, length, dim)", "x": "(batch, heads, length, dim)"}),
    "Llama's": (apply_rotary_emb, {"pairing": "interleaved", "table": "complex numbers", "x": "(batch, length, heads, dim)"}),
    "of one array": (rotate, {"pairing": "interleaved", "cos, sin": "(length, dim / 2)"}),
    "with tables of neighbours": (neighbours, {"pairing": "interleaved", "cos, sin": "(length, dim), neighbours alike"}),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("form", FORMS)
def test_a_rotation_by_tables_is_a_rotation(form: str) -> None:
    function, told = FORMS[form]
    target = make_target("mine", function)
    assert target.contract == "rotary" and told.items() <= target.learned.items()
    report = verify_target(target, select(THEMES), Plan(examples=15))
    assert not report.findings, [(f.prop.name, f.case, f.violation.says) for f in report.findings]
    assert sum(outcome.status == "passed" for outcome in report.outcomes.values()) >= 9


def test_what_computes_in_float32_is_not_held_to_float64() -> None:
    target = make_target("mine", apply_rotary_emb)
    assert "float64" not in target.dtypes and "float32" in target.untried["float64"]


MISTAKES: dict[str, Any] = {
    "keys backwards": lambda q, k, cos, sin: (apply_rotary_pos_emb(q, k, cos, sin)[0], apply_rotary_pos_emb(q, k, cos, -sin)[1]),
    "queries twice": lambda q, k, cos, sin: (apply_rotary_pos_emb(q, k, cos, sin)[0],) * 2,
    "the sine forgotten": lambda q, k, cos, sin: (q * cos.unsqueeze(1), k * cos.unsqueeze(1)),
    "halves and neighbours": lambda q, k, cos, sin: (
        neighbours(q, k, cos.unsqueeze(1), sin.unsqueeze(1))[0],
        apply_rotary_pos_emb(q, k, cos, sin)[1],
    ),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_rotation_by_tables_is_refuted(mistake: str) -> None:
    report = verify_target(make_target("mine", MISTAKES[mistake]), select(THEMES), Plan(examples=30))
    assert "rotation_is_inside_the_bound" in {finding.prop.name for finding in report.findings}


def partial(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, last: bool = False) -> Any:
    """As GPT-NeoX and Phi turn: the features that there are tables for, and no other."""
    n = cos.shape[-1]
    turned, passed = (slice(-n, None), slice(None, -n)) if last else (slice(None, n), slice(n, None))
    turns = apply_rotary_pos_emb(q[..., turned], k[..., turned], cos, sin)
    return tuple(torch.cat([y, x[..., passed]], -1) for y, x in zip(turns, (q, k), strict=True))


def test_features_beyond_the_tables_pass() -> None:
    target = make_target("mine", partial)
    assert "rotary_dim" in target.parameters and "beyond it pass" in target.learned["rotary_dim"]
    report = verify_target(target, select(THEMES), Plan(examples=15))
    assert not report.findings and report.outcomes["features_beyond_rotary_dim_are_untouched"].status == "passed"
    assert "rotary_dim" not in make_target("mine", apply_rotary_pos_emb).parameters


def test_other_features_than_the_tables_are_for_are_refuted() -> None:
    target = make_target("mine", lambda q, k, cos, sin: partial(q, k, cos, sin, True))
    report = verify_target(target, select(THEMES), Plan(examples=15))
    assert "features_beyond_rotary_dim_are_untouched" in {finding.prop.name for finding in report.findings}


def test_what_turns_backwards_is_told_so_in_its_own_pairing() -> None:
    target = make_target("mine", lambda q, k, cos, sin: apply_rotary_pos_emb(q, k, cos, -sin))
    assert target.supports.pairing == "half" and "by −θ" in target.wrong["direction"]
    report = verify_target(target, select(THEMES), Plan(examples=15))
    assert {"rotation_is_inside_the_bound"} <= {finding.prop.name for finding in report.findings}
    assert "pairs_are_as_declared" not in {finding.prop.name for finding in report.findings}


def test_what_takes_no_such_tables_says_so() -> None:
    def strange(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        return q @ cos

    with pytest.raises(CannotRun, match=r"cannot be called as a rotation of q, k by tables|requires cos, sin"):
        make_target("mine", strange)


def test_tables_of_which_half_is_read_are_no_part() -> None:
    """As wide as a head, and of neighbours: half of such a table says all. One of half the width would not raise, and turn all features."""

    def sliced(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        half = q.shape[-1] // 2
        cos, sin = cos[:, None, :, :half], sin[:, None, :, :half]

        def turn(x: Tensor) -> Tensor:
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

        return turn(q), turn(k)

    target = make_target("mine", sliced)
    assert "rotary_dim" not in target.parameters
    assert not verify_target(target, select(THEMES), Plan(examples=8)).findings
