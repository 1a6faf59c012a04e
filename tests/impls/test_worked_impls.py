"""The worked examples where they concern one implementation: whole numbers as input, modules that train, loops."""

from __future__ import annotations

import subprocess
import sys
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from impls import loops, numpy_matmul

UNIT = 2.0**-53
ROOT = Path(__file__).parents[2]
WORDS = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
PRINTED = np.array(
    [
        [0.98522025, 1.74174051, 0.75652026],
        [0.90965265, 1.40965265, 0.5],
        [0.99851226, 1.75849334, 0.75998108],
        [0.99560386, 1.90407309, 0.90846923],
    ]
)
HALF_A_UNIT = 0.5e-8
THREE = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])


def softmax_error(largest: float, dim: int, keys: int) -> float:
    """Relative error of a float64 weight: 2·(dim + 3) roundings of logits up to ``largest``, keys + 10 of the rest."""
    return UNIT * (2 * (dim + 3) * largest + keys + 10)


def test_single_head_prints_what_was_published() -> None:
    """np.random.seed(42), W_Q, W_K, W_V = randint(3, size=(3, 3)), as published: whole numbers all the way."""
    np.random.seed(42)
    w_q, w_k, w_v = (np.random.randint(3, size=(3, 3)) for _ in range(3))
    output, weights = numpy_matmul.single_head(WORDS, w_q, w_k, w_v)
    assert output.dtype == np.float64
    assert (np.abs(output - PRINTED) <= HALF_A_UNIT + 4 * softmax_error(16, 3, 4)).all()
    assert (np.abs(weights.sum(axis=-1) - 1) <= 8 * UNIT).all()
    given, _ = numpy_matmul.single_head(WORDS, w_q, w_k, w_v, scale=1 / sqrt(3))
    assert (np.abs(given - PRINTED) <= HALF_A_UNIT + 4 * softmax_error(16, 3, 4)).all()


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32, np.float64])
def test_two_heads_take_whole_numbers(dtype: type) -> None:
    """d_model 4, d_k = d_v = 2: each head gives 3×2 numbers, the same for integers as for their float64 values."""
    rng = np.random.default_rng(0)
    heads = [[rng.integers(3, size=(4, 2)) for _ in range(3)] for _ in range(2)]
    outputs = []
    for w_q, w_k, w_v in heads:
        whole = [x.astype(dtype) for x in (THREE, w_q, w_k, w_v)]
        output, weights = numpy_matmul.single_head(whole[0], whole[1], whole[2], whole[3])
        exact, _ = numpy_matmul.single_head(THREE * 1.0, w_q * 1.0, w_k * 1.0, w_v * 1.0)
        unit = 2.0**-24 if dtype is np.float32 else UNIT
        assert output.shape == (3, 2) and weights.shape == (3, 3)
        assert (np.abs(weights.sum(axis=-1) - 1) <= 6 * unit).all()
        assert (np.abs(output - exact) <= 16 * softmax_error(64, 2, 3) * unit / UNIT).all()
        outputs.append(output)
    assert np.concatenate(outputs, axis=-1).shape == (3, 4)


@pytest.mark.parametrize("causal", [False, True])
def test_the_loops_without_parameters(causal: bool) -> None:
    """Eight tokens of dimension 32, Q = K = V = X: loop weights are matmul weights, row 3 is the hand-written sum."""
    x = np.random.default_rng(1).normal(size=(8, 32))
    output, weights = loops.self_attention(x, is_causal=causal)
    visible = np.tri(8, dtype=bool) if causal else True
    expected = numpy_matmul.attention_weights(x, x, visible=visible)
    error = 2 * softmax_error(float(np.abs(x @ x.T).max()) / sqrt(32), 32, 8)
    assert (np.abs(weights - expected) <= error * expected).all()  # and 0 where it is 0
    w = weights[3]
    total = w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3]
    if causal:
        assert (w[4:] == 0).all()
    else:
        total = total + w[4] * x[4] + w[5] * x[5] + w[6] * x[6] + w[7] * x[7]
    assert (np.abs(output[3] - total) <= 16 * UNIT * (w @ np.abs(x))).all()


def test_the_variance_falls_by_exactly_d_k() -> None:
    """Var(s) / Var(s / sqrt(32)) = 32: exact where the scale is a power of two, and for d_k = 64 it is 1/8."""
    x = np.random.default_rng(2).integers(-3, 4, size=(8, 64)) * 1.0
    raw = x @ x.T  # whole numbers: exact
    assert raw.var() == 64 * (raw / 8).var()


torch = pytest.importorskip("torch")
from impls.torch_manual import AttentionHead, MultiHeadAttention, SelfAttention


def test_a_batch_of_eight_through_one_head() -> None:
    """Batch 8, length 10, 512 → 64."""
    torch.manual_seed(0)
    head, x = AttentionHead(512, 64), torch.randn(8, 10, 512)
    assert [tuple(f(x).shape) for f in (head.q, head.k, head.v, head)] == [(8, 10, 64)] * 4
    assert tuple(SelfAttention(512)(x).shape) == (8, 10, 512)


def test_the_sentence_through_the_module() -> None:
    """Embedding 32, four heads: output (1, 8, 32), weights (1, 4, 8, 8) whose rows sum to one."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(8, 32)
    x = embedding(torch.tensor([[0, 6, 4, 2, 1, 7, 4, 5]]))
    output, weights = MultiHeadAttention(32, 4)(x, x, x)
    assert tuple(output.shape) == (1, 8, 32) and tuple(weights.shape) == (1, 4, 8, 8)
    assert bool(((weights.sum(dim=-1) - 1).abs() <= 16 * 2.0**-24).all())
    assert torch.equal(x[0, 2 + 1], embedding.weight[2]) and torch.equal(x[0, 2], x[0, 6])  # "is" twice


@pytest.mark.parametrize("module", [SelfAttention(32), AttentionHead(32, 32)], ids=["SelfAttention", "AttentionHead"])
def test_a_mask_of_zeros_and_ones_hides_as_a_large_number_does(module: AttentionHead) -> None:
    """mask == 0 is hidden; −1e10 in the place of those products, before scaling, gives the same bits up to rounding."""
    torch.manual_seed(0)
    module = module.double()
    x, mask = torch.randn(1, 8, 32, dtype=torch.float64), torch.ones(8, 8).tril()
    with torch.no_grad():
        q, k, v = module.q(x), module.k(x), module.v(x)
        logits = (q @ k.transpose(-2, -1)).masked_fill(mask == 0, -1e10) / sqrt(32)
        weights = logits.softmax(dim=-1)
        assert bool((weights[:, mask == 0] == 0).all())
        largest = float((logits * mask).abs().max())
        error = 4 * softmax_error(largest, 32, 8) * (weights @ v.abs())
        assert bool(((module(x, mask) - weights @ v).abs() <= error).all())


@pytest.mark.nightly
def test_every_worked_example_is_put_to_some_implementation() -> None:
    """An example that fits nothing would be collected once, as a test that is skipped."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "properties/test_worked_examples.py"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "::test_four_words[numpy_matmul.attention-float64]" in collected
    assert "::test_four_words_through_the_projections_of_a_layer[numpy_matmul.multihead-float32]" in collected
    assert "NOTSET" not in collected
