"""Rotations of other pairs of features, which is a convention: told once, and compared all the same, with features in the order of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from properties import verify_pair


def of_halves(x: Tensor) -> Tensor:
    one, other = x.chunk(2, -1)
    return torch.cat([-other, one], -1)


def of_neighbours(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def halves(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return q * cos + of_halves(q) * sin, k * cos + of_halves(k) * sin


def neighbours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return q * cos + of_neighbours(q) * sin, k * cos + of_neighbours(k) * sin


def too_large(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """By less than shows in what it is asked at first."""
    return q * cos + of_neighbours(q) * sin, (k * cos + of_neighbours(k) * sin) * (1 + 3e-4)


@pytest.mark.parametrize(("own", "reference"), [(neighbours, halves), (halves, neighbours)])
def test_another_pairing_is_told_and_is_no_finding(own: Any, reference: Any) -> None:
    verdict = verify_pair(own, reference, cases=20)
    assert verdict.ok, verdict
    assert set(verdict.report.target.differs) == {"pairing"}


def test_what_else_parts_them_is_found() -> None:
    verdict = verify_pair(too_large, halves, cases=20)
    assert [f.prop.name for f in verdict.findings] == ["answers_are_those_of_the_reference"], verdict
