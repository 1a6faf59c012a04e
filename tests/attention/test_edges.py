"""Where a wrong answer is an edge: near the largest number only if something has overflowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from properties.attention.case import Case
from properties.attention.edges import edge
from properties.attention.trial import Trial
from properties.catalogue import PROPERTIES
from properties.engine.core.attempt import attempt
from properties.engine.search.probe import make_target


def attention(q: Any, k: Any, v: Any, late: bool = False, factor: float = 1.0) -> Any:
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        return (1e6 * weights @ v / (1e6 * total) if late else weights / total @ v) * q.dtype.type(factor)


@pytest.mark.parametrize(
    ("how", "values", "expected"),
    [
        ({"late": True}, "limits", "numbers near the largest"),  # the sum before it is divided
        ({"factor": 1.01}, "limits", ""),  # is finite, and wrong
        ({"factor": 1.01}, "normal", ""),
        ({"factor": np.inf}, "normal", ""),
    ],
)
def test_what_has_not_overflowed_is_no_edge(how: dict[str, Any], values: str, expected: str) -> None:
    def mine(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, **how)

    target = make_target("mine", mine)
    case = Case(queries=2, keys=5, dim=4, values=values)
    violation, trial = attempt(target, PROPERTIES["output_is_inside_the_bound"], case)
    assert violation is not None and isinstance(trial, Trial)
    assert edge(case, violation, trial) == expected
