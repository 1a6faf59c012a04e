"""Who serves what is trained says that no gradients will be asked for: it answers as it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from properties.catalogue import PROPERTIES
from properties.engine.search.find_target import ALWAYS, NEVER, Builtins, containing, find_targets
from properties.engine.search.pairs import make_pair, pair_properties
from properties.engine.search.search import Plan, search

torch = pytest.importorskip("torch")

CODE = """
import torch
import torch.nn.functional as F

def attention(q, k, v):
    out = F.scaled_dot_product_attention(q, k, v)
    return {answer}

attention.supports = {{"zero_sizes": False}}
"""
ANSWERS = {
    "right": "out",
    "right but for rounding": "out if torch.is_grad_enabled() else F.scaled_dot_product_attention(q, k.flip(2), v.flip(2))",
    "torch.no_grad": "out if torch.is_grad_enabled() else out * 0.99",
    "torch.inference_mode": "out * 0.99 if torch.is_inference_mode_enabled() else out",
}


@pytest.mark.parametrize("where", [NEVER, ALWAYS], ids=["here", "in a process of its own"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_what_is_told_that_no_gradients_will_be_asked_for_answers_as_before(answer: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "serves.py").write_text(CODE.format(answer=ANSWERS[answer]))
    with containing(where):
        (target,) = find_targets(f"{tmp_path / 'serves.py'}:attention", Builtins())
        found = search(target, PROPERTIES["same_call_same_bits"], Plan(examples=12)).finding
    assert (found is not None) is answer.startswith("torch.")
    assert found is None or f"row 0 differs under {answer}()" in str(found.violation)


MODULE = """
import torch
import torch.nn.functional as F
from torch import nn

class Attention(nn.Module):
    def __init__(self, rate=0.5):
        super().__init__()
        self.rate, self.drop = rate, nn.Dropout(rate)

    def forward(self, q, k, v):
        weights = torch.softmax(q @ k.mT * max(q.shape[-1], 1) ** -0.5, -1)
        return {answer}
"""
TRAINED = {
    "right": "self.drop(weights) @ v",
    "dropout of its own": "F.dropout(weights, self.rate, self.training) @ v",
    "wrong in train mode": "weights @ v * (0.99 if self.training else 1)",
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("where", [NEVER, ALWAYS], ids=["here", "in a process of its own"])
@pytest.mark.parametrize("answer", TRAINED)
def test_a_module_without_weights_answers_alike_in_train_mode(answer: str, where: str, tmp_path: Path) -> None:
    """But for dropout; afterwards it is in eval mode again."""
    (tmp_path / "trains.py").write_text(MODULE.format(answer=TRAINED[answer]))
    with containing(where):
        (target,) = find_targets(f"{tmp_path / 'trains.py'}:Attention", Builtins())
        found = search(target, PROPERTIES["same_call_same_bits"], Plan(examples=12)).finding
        assert search(target, PROPERTIES["rows_sum_to_one"], Plan(examples=4)).finding is None
        (reference,) = find_targets("torch_manual.attention", Builtins())
        pair = make_pair(target, reference)
        parted = search(pair, pair_properties(pair)[0], Plan(examples=24, alike=True)).finding
    assert (found is not None) == (parted is not None) == answer.startswith("wrong")
    assert found is None or parted is None or all("in train mode" in str(one.violation) for one in (found, parted))
