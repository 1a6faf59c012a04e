"""What a report says of a mistake is about that mistake, or it says nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from properties.attention.measure import factor, measured
from properties.catalogue import PROPERTIES
from properties.engine.doors.cli import main
from properties.engine.explain.reading import ABOUT_EMPTY_ROWS, read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search


def zero_without_keys(q: Any, k: Any, v: Any, *, attn_mask: Any = None) -> Any:
    """A row without keys gives zeros."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if attn_mask is None:
        return torch.softmax(scores, -1) @ v
    seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf
    scores = scores if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1).nan_to_num() @ v


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("name", ["rows_without_keys_follow_the_convention", "output_is_inside_the_bound"])
def test_rows_without_keys_are_not_taken_for_another_mistake(name: str) -> None:
    """Wrong there alone: a small mistake, too, that a bound in bfloat16 hides, gives zeros there, but that is not what is wrong."""
    facts = {"framework": "torch", "empty_rows": "nan", "dtypes": ["bfloat16"], "zero_sizes": False}
    target = make_target("mine", zero_without_keys, facts)
    finding = search(target, PROPERTIES[name], Plan()).finding
    assert finding
    assert {suspect.killed_by for suspect in read_failure(target, finding, known_mistakes())} <= ABOUT_EMPTY_ROWS


def test_a_factor_that_rounds_to_one_is_not_told() -> None:
    def nearly(q: Any, k: Any, v: Any) -> Any:
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        rows = torch.linspace(-1, 1, q.shape[2], dtype=q.dtype)[:, None] if q.shape[2] > 1 else torch.ones(1, 1, dtype=q.dtype)
        return weights * (1 + 1e-5 * rows) @ v

    target = make_target("mine", nearly, {"framework": "torch", "dtypes": ["float64"], "zero_sizes": False})
    finding = search(target, PROPERTIES["rows_sum_to_one"], Plan()).finding
    assert finding and not measured(target, finding)


def test_a_factor_near_one_is_told_by_its_difference() -> None:
    assert [factor(x) for x in (0.5, 1.00002, 1 - 3e-6)] == ["0.5", "1 + 2e-05", "1 − 3e-06"]


def test_without_known_mistakes_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a machine without PyTorch, or with one that lacks what they are written with."""
    (tmp_path / "wrong.py").write_text("def attention(q, k, v):\n    return v[..., :1, :] + 0 * q\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "impls.mutants", None)
    assert (
        main(["wrong.py:attention", "--property", "rows_sum_to_one", "--property", "equal_logits_share_equally", "--cases", "30", "-q"])
        == 1
    )
    out = capsys.readouterr().out
    assert out.count("no readings: the known mistakes cannot be imported (") == 1
    assert "impls.mutants" in out
