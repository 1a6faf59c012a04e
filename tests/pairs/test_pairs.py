"""Two targets put to the same calls: right ones agree, whatever their names and axes; one that is off is refuted with its smallest case."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import permissive
import pytest
import torch
from exact_modules import Right
from module_styles import OfDataclass, Plain
from nightly import one_in
from torch import Tensor, nn

from impls import catalogue, linear_attention
from impls.mutants import load_all
from properties import verify_pair
from properties.engine.core.declare import GRADIENTS
from properties.engine.core.target import CannotRun
from properties.engine.doors.cli import main
from properties.engine.search.pairs import make_pair
from properties.engine.search.probe import make_target

ENTRIES = {entry.name: entry for entry in catalogue.CATALOGUE}
ROOT = Path(__file__).parents[2]


def builtin(name: str) -> Any:
    return catalogue.load(ENTRIES[name])


class PerHead(nn.Module):
    """As in GPT-NeoX: the rows of one projection are [q, k, v] for one head after another."""

    def __init__(self, hidden_size: int, num_attention_heads: int) -> None:
        super().__init__()
        self.h = num_attention_heads
        self.query_key_value, self.dense = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states: Tensor) -> Any:
        q, k, v = self.query_key_value(hidden_states).unflatten(-1, (self.h, -1)).transpose(1, 2).chunk(3, -1)
        return self.dense(((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """An encoder layer by hand, post-norm, with parts in PyTorch's order and under other names."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int) -> None:
        super().__init__()
        self.attention = Right(d_model, nhead)
        self.ff1, self.ff2 = nn.Linear(d_model, dim_feedforward), nn.Linear(dim_feedforward, d_model)
        self.ln1, self.ln2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x: Tensor) -> Any:
        x = self.ln1(x + self.attention(x))
        return self.ln2(x + self.ff2(self.ff1(x).relu()))


def off(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """A scale that is off by a millionth."""
    return permissive.attention(q, k, v, is_causal=is_causal, scale=q.shape[-1] ** -0.5 * (1 + 1e-6) if q.shape[-1] else None)


def right(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    return permissive.attention(q, k, v, is_causal=is_causal)


def other_axes(query: Any, key: Any, value: Any, causal: bool = False) -> Any:
    """(batch, length, heads, dim), in NumPy."""
    q, k, v = (np.moveaxis(x, 1, 2) for x in (query, key, value))
    s = q @ np.swapaxes(k, 2, 3) * q.shape[-1] ** -0.5
    if causal:
        s = np.where(np.tri(*s.shape[2:], dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.moveaxis(e / e.sum(-1, keepdims=True) @ v, 1, 2)


other_axes.supports = {"framework": "numpy"}  # type: ignore[attr-defined]

SAME = {
    "two built-ins": (builtin("torch_sdpa.math"), builtin("torch_manual.attention")),
    "other axes, another framework": (right, other_axes),
    "linear attention, two forms": (linear_attention.parallel, linear_attention.recurrent),
    "loops against NumPy": (builtin("loops.attention"), builtin("numpy_matmul.attention")),
    "an own layer against PyTorch's": (builtin("torch_manual.multihead"), builtin("torch_mha.train")),
    "an own encoder layer against PyTorch's": (builtin("transformer_layers.encoder"), builtin("torch_layers.encoder_train")),
    "an own decoder layer against PyTorch's": (builtin("transformer_layers.decoder"), builtin("torch_layers.decoder_train")),
    "two rotations": (builtin("positions_torch.rotary"), builtin("positions_torch.rotary_complex")),
    "two caches": (builtin("caches_numpy.Contiguous"), builtin("caches_torch.Paged")),
    "own names against PyTorch's": (Plain, nn.MultiheadAttention(32, 4, batch_first=True)),
    "fused against separate, causal by a flag": (OfDataclass, Right),
    "per head against blocks": (PerHead, nn.MultiheadAttention(32, 4, batch_first=True)),
    "length first against batch first": (nn.MultiheadAttention(32, 4), nn.MultiheadAttention(32, 4, batch_first=True)),
    "an encoder layer": (Encoder, nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)),
}


WITHOUT_GRADIENTS = (
    "other axes, another framework",
    "linear attention, two forms",
    "loops against NumPy",
    "two rotations",
    "two caches",
)  # or with gradients of which none are compared


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("which", one_in(2, [name for name, pair in SAME.items() if pair]))
def test_right_ones_agree(which: str) -> None:
    verdict = verify_pair(*SAME[which], cases=8)  # type: ignore[misc]
    assert verdict.ok, verdict
    outcome, *more = verdict.report.outcomes.values()
    assert outcome.cases == 8 and outcome.notes.compared > 50 and f"pair {1 + len(more)}" in repr(verdict)
    assert all(one.cases for one in more)
    assert GRADIENTS in verdict.report.outcomes or which in WITHOUT_GRADIENTS


DIFFERENT = {
    "a scale off by a millionth": (off, right),
    "one too far": (load_all()[0]["causal.one_too_far"].function, builtin("torch_manual.attention")),
    "a module whose scale is that of its width": (load_all()[0]["module_heads.ScaleOfWidth"].function, Right),
    "a softmax over queries": (load_all()[0]["module_heads.OverQueries"].function, nn.MultiheadAttention(32, 4, batch_first=True)),
    "one that is not causal": (OfDataclass, PerHead),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("which", DIFFERENT)
def test_what_parts_is_refuted(which: str) -> None:
    verdict = verify_pair(*DIFFERENT[which], cases=16)
    found = [f.prop.name for f in verdict.findings]
    large = "answers_to_large_logits_are_those_of_the_reference"
    assert not verdict.ok and found == ["answers_are_those_of_the_reference", *[large] * (which == "one too far")]
    assert "differs from the reference's" in verdict.findings[0].violation.says


@pytest.mark.nightly
def test_a_difference_of_dialect_is_told_once_and_not_compared() -> None:
    def last(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return permissive.attention(q, k, v, attn_mask=seen if is_causal else None)

    last.supports = {"causal": "bottom-right", "framework": "torch"}  # type: ignore[attr-defined]
    verdict = verify_pair(last, right, cases=30)
    assert verdict.ok and verdict.report.target.differs == {"causal": "bottom-right; the reference: top-left"}
    assert "is_causal" not in verdict.report.target.parameters


@pytest.mark.nightly
def test_rows_without_keys_are_left_out_where_they_give_other_things_and_no_other_rows() -> None:
    """One gives 0 there, the other nothing that is a number; a scale that is off by a millionth is refuted beside it."""
    own, theirs = builtin("torch_manual.multihead"), builtin("torch_mha.train")
    verdict = verify_pair(own, theirs, cases=30)
    assert verdict.ok and verdict.report.target.differs == {"empty_rows": "zero; the reference: nan"}

    def slightly(query: Any, key: Any, value: Any, weights: Any, **options: Any) -> Any:
        return own(query * (1 + 1e-6), key, value, weights, **options)

    slightly.supports = own.supports  # type: ignore[attr-defined]
    slightly.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
    assert not verify_pair(slightly, theirs, cases=30).ok


def test_what_is_no_pair_is_told_in_one_sentence() -> None:
    with pytest.raises(CannotRun, match="right is an attention and Right a module: no pair"):
        verify_pair(right, Right)
    with pytest.raises(CannotRun, match="take tokens of 32 and 24 features: give sizes"):
        verify_pair(Right, nn.MultiheadAttention(24, 3, batch_first=True))


def test_the_command_line_replays_what_it_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(
        "import torch\n\n\ndef one(q, k, v):\n    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v\n\n\n"
        "def other(q, k, v):\n    return (q @ k.mT * (q.shape[-1] + 1) ** -0.5).softmax(-1) @ v\n"
    )
    assert main(["two.py:one", "--like", "two.py:one", "--cases", "4", "-q"]) == 0
    assert main(["two.py:one", "--like", "two.py:other", "--cases", "20", "-q"]) == 1
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "replay" in line)
    assert "two.py:one --like two.py:other --property answers_are_those_of_the_reference --case" in line
    case = line[line.index("--case") :].split('"')[1]
    assert main(["two.py:one", "--like", "two.py:other", "--property", "answers_are_those_of_the_reference", "--case", case]) == 1
    assert main(["two.py:one", "--like", "two.py:nobody"]) == 2


def test_lengths_of_a_pair_are_multiples_of_both() -> None:
    """A call that one of them does not take is not made, and proves nothing against the other."""

    def fours(q: Any, k: Any, v: Any) -> Any:
        assert q.shape[2] % 4 == k.shape[2] % 4 == 0
        return right(q, k, v)

    def sixes(q: Any, k: Any, v: Any) -> Any:
        assert q.shape[2] % 6 == k.shape[2] % 6 == 0
        return right(q, k, v)

    fours.supports, sixes.supports = ({"framework": "torch", "length_multiple": multiple} for multiple in (4, 6))  # type: ignore[attr-defined]
    both = verify_pair(fours, sixes, cases=12)
    assert both.ok and both.report.target.supports.length_multiple == 12
    assert all(outcome.cases == 12 for outcome in both.report.outcomes.values())
    assert all(size % 12 == 0 for outcome in both.report.outcomes.values() for size in outcome.ranges.sizes["keys"])


def test_sequences_of_a_pair_are_no_longer_than_either_takes() -> None:
    for mine, theirs, both in ((9, 5, 5), (5, 9, 5), (5, None, 5), (None, 5, 5), (None, None, None)):
        pair = [
            make_target(name, permissive.attention, {"framework": "torch", "max_length": n})
            for name, n in (("one", mine), ("other", theirs))
        ]
        assert make_pair(*pair).supports.max_length == both


class Asked(nn.Module):
    """As Hugging Face's modules: causality is what a mask says; without one the one way is causal, and the other is not."""

    def __init__(self, d_model: int = 32, num_heads: int = 4, causal: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.heads, self.causal, self.scale = num_heads, causal, scale
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, hidden_states: Any, attention_mask: Any = None) -> Any:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(hidden_states).chunk(3, -1))
        hint = self.causal and attention_mask is None and q.shape[2] > 1
        out = nn.functional.scaled_dot_product_attention(q, k, v, attention_mask, is_causal=hint, scale=self.scale)
        return self.proj(out.transpose(1, 2).flatten(2))


@pytest.mark.nightly
def test_what_is_causal_without_a_mask_alone_is_told_and_compared_with_one() -> None:
    verdict = verify_pair(Asked(), Asked(causal=True), cases=8)
    assert verdict.ok and verdict.report.cases == 16
    assert verdict.report.target.differs["causality"] == "without a mask the reference sees no later tokens; calls with one are compared"
    assert "differs   causality: without a mask the reference" in repr(verdict)
    assert "causality" not in verify_pair(Asked(), Asked(), cases=2).report.target.differs
    wrong = verify_pair(Asked(), Asked(causal=True, scale=0.1), cases=8)
    assert not wrong.ok and wrong.report.findings[0].case.padded
