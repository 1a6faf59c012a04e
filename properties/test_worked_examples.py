"""Five worked examples from tutorials on self-attention, put to every target that fits.

A published number is met "to the printed digits": |x − printed| ≤ half a unit of the last printed digit, plus the
derived bound of the target's arithmetic. The marker ``example`` says what a target must be able to do.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest

from .attention.common import mean_free
from .attention.inputs import Inputs
from .attention.scaling import logits_of
from .attention.trial import Run, Trial
from .engine.cases.coordinates import Array, normal
from .engine.cases.dtypes import FLOAT_TYPES, round_to
from .engine.core.target import Target
from .exact import bound, oracle
from .exact.arithmetic import default_arithmetic
from .exact.oracle import split_heads
from .multihead.call import LayerInputs, as_attention
from .multihead.cases import Case
from .multihead.trial import BIASES, MATRICES, LayerRun, LayerTrial

REACHING = tuple(d for d in FLOAT_TYPES if FLOAT_TYPES[d].max > 1e10)  # in which 1e10 is finite


def attention_of(target: Target, dtype: str) -> Trial:
    """The target, or the kernel inside it, ready to be called."""
    return Trial(as_attention(target), Case(dtype=dtype))


def layer_of(target: Target, dtype: str) -> LayerTrial:
    """The target as a layer."""
    return LayerTrial(target, Case(dtype=dtype))


def inputs(dtype: str, q: Any, k: Any, v: Any, **options: Any) -> Inputs:
    """Arrays of any rank, (…, length, dim), as the (batch, heads, length, dim) of one call."""
    made = Inputs(*(np.zeros((1, 1, 1, 1)),) * 3, dtype=dtype)
    tensors = {name: np.asarray(x, dtype=np.float64) for name, x in (("q", q), ("k", k), ("v", v))}
    return made.but(**{name: x.reshape((1,) * (4 - x.ndim) + x.shape) for name, x in tensors.items()}, **options)


# ---------------------------------------------------------------- four words

WORDS = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
PRINTED = np.array(
    [
        [0.98522025, 1.74174051, 0.75652026],
        [0.90965265, 1.40965265, 0.5],
        [0.99851226, 1.75849334, 0.75998108],
        [0.99560386, 1.90407309, 0.90846923],
    ]
)
HALF_A_UNIT = 0.5e-8  # NumPy prints 8 digits and drops zeros at the end


def projections() -> tuple[Array, Array, Array]:
    """W_Q, W_K, W_V of the example, in this order, each (3, 3), from NumPy's legacy generator as published."""
    np.random.seed(42)
    w_q, w_k, w_v = (np.random.randint(3, size=(3, 3)) for _ in range(3))
    return w_q, w_k, w_v


def test_the_published_matrices() -> None:
    """The legacy generator is frozen: these are the numbers behind the printed output, and all of them are exact."""
    w_q, w_k, w_v = projections()
    assert w_q.tolist() == [[2, 0, 2], [2, 0, 0], [2, 1, 2]]
    assert w_k.tolist() == [[2, 2, 2], [0, 2, 1], [0, 1, 1]]
    assert w_v.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]


@pytest.mark.example(length=4, dim=3)
def test_four_words(target: Target, dtype: str) -> None:
    """The printed rows, in every dtype: small whole numbers are exact, and the default scale is 1/sqrt(3)."""
    t = attention_of(target, dtype)
    run = t.run(inputs(dtype, *(WORDS @ w for w in projections())))
    t.close(run.out[0, 0], PRINTED, HALF_A_UNIT + run.bound[0, 0], "the word in row {row} is not what was printed")


@pytest.mark.example(needs=("scale",), length=4, dim=3)
def test_four_words_with_the_scale_given(target: Target, dtype: str) -> None:
    """1/sqrt(3) given is 1/sqrt(3) by default."""
    t = attention_of(target, dtype)
    run = t.run(inputs(dtype, *(WORDS @ w for w in projections()), scale=1 / sqrt(3)))
    t.close(run.out[0, 0], PRINTED, HALF_A_UNIT + run.bound[0, 0], "the word in row {row} is not what was printed")


@pytest.mark.example(about="multihead")
def test_four_words_through_the_projections_of_a_layer(target: Target, dtype: str) -> None:
    """The same with the matrices as the layer's own: y = x Wᵀ, so they are given transposed."""
    t = layer_of(target, dtype)
    w_q, w_k, w_v = (w.T * 1.0 for w in projections())
    x = WORDS[None] * 1.0
    run = t.run_layer(LayerInputs(x, x, x, {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": np.eye(3)}, num_heads=1, dtype=dtype))
    t.close(run.out[0], PRINTED, HALF_A_UNIT + run.bound[0], "the word in row {row} is not what was printed")


# ---------------------------------------------------------------- two heads

THREE = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])


def two_heads() -> dict[str, Array]:
    """Whole numbers for W_q, W_k, W_v of two heads (4 → 2 each, one below the other), and W_o = 1."""
    rng = np.random.default_rng(0)
    return {name: rng.integers(3, size=(4, 4)) * 1.0 for name in MATRICES[:3]} | {"w_o": np.eye(4)}


@pytest.mark.example(length=3, dim=2)
def test_two_heads_of_an_attention(target: Target, dtype: str) -> None:
    """X of three tokens, d_model 4, d_k = d_v = 2: weights of every row sum to one, and a head gives 3×2 numbers."""
    t = attention_of(target, dtype)
    q, k, v = (split_heads(THREE[None] @ w.T, 2) for w in list(two_heads().values())[:3])
    given = inputs(dtype, q, k, v)
    run = t.run(given)
    assert run.out.shape == (1, 2, 3, 2)
    t.inside(run, run.bound, "row {row} of head {head} is off")
    read = t.weights(given)
    assert read.out.shape == (1, 2, 3, 3)
    t.close(
        read.out.sum(axis=-1),
        np.array(1.0),
        read.bound.sum(axis=-1) + 2.0**-51,
        "the weights of row {column} do not sum to one",
    )


@pytest.mark.example(about="multihead")
def test_two_heads_of_a_layer(target: Target, dtype: str) -> None:
    """The same as a layer: with W_o = 1 the output is the two heads side by side."""
    t = layer_of(target, dtype)
    x = THREE[None] * 1.0
    run = t.run_layer(LayerInputs(x, x, x, two_heads(), num_heads=2, dtype=dtype))
    assert split_heads(run.out, 2).shape == (1, 2, 3, 2)
    t.inside(run, run.bound, "token {row}, feature {column} is off")
    if run.weights is not None:
        t.close(
            run.weights.sum(axis=-1),
            np.array(1.0),
            run.weights_bound.sum(axis=-1) + 2.0**-51,
            "the weights of row {column} do not sum to one",
        )


# ---------------------------------------------------------------- a sentence

SENTENCE = "The sky is blue and world is round"
PUBLISHED_VARIANCES = (38521.3, 1203.79)


def ids() -> list[int]:
    """The number of each word, from ``enumerate(sorted(words))``."""
    words = SENTENCE.split()
    number = {word: i for i, word in enumerate(sorted(words))}
    return [number[word] for word in words]


def embedded() -> Array:
    """(1, 8, 32): a random row of numbers for each id."""
    return normal(0, "embedding", (8, 32))[ids()][None]


def test_the_ids_of_the_sentence() -> None:
    """Erratum: the list printed beside this sentence, ``[0 6 5 3 1 7 5 3]``, cannot come from it.

    It gives the different words "blue" and "round" the same id, 3, while ids are places in a sorted list.
    ``enumerate(sorted(words))`` gives what follows; "is" stands there twice, and the later place counts.
    """
    words, printed = SENTENCE.split(), [0, 6, 5, 3, 1, 7, 5, 3]
    assert ids() == [0, 6, 4, 2, 1, 7, 4, 5]
    assert printed[words.index("blue")] == printed[words.index("round")]
    assert len(set(printed)) < len(set(words)) == len(set(ids()))


def test_the_published_variances() -> None:
    """38521.3 / 1203.79 is 32 to the printed digits: the interval of quotients that would print so holds 32."""
    raw, scaled = PUBLISHED_VARIANCES
    assert (raw - 0.05) / (scaled + 0.005) < 32 < (raw + 0.05) / (scaled - 0.005)


def sentence_through(target: Target, dtype: str) -> tuple[LayerTrial, LayerRun]:
    """Embedding 32, four heads."""
    t = layer_of(target, dtype)
    weights = {name: round_to(dtype, normal(1, name, (32, 32)) / sqrt(32)) for name in MATRICES}
    weights |= {name: round_to(dtype, normal(1, name, (32,))) for name in BIASES}
    x = round_to(dtype, embedded())
    return t, t.run_layer(LayerInputs(x, x, x, weights, num_heads=4, dtype=dtype))


@pytest.mark.example(about="multihead")
def test_a_sentence_through_a_layer(target: Target, dtype: str) -> None:
    """The output is (1, 8, 32), inside its bound."""
    t, run = sentence_through(target, dtype)
    assert run.out.shape == (1, 8, 32)
    t.inside(run, run.bound, "word {row}, feature {column} is off")


@pytest.mark.example(about="multihead", needs=("returns_weights",))
def test_the_weights_of_a_sentence(target: Target, dtype: str) -> None:
    """The attention weights are (1, 4, 8, 8), inside theirs."""
    t, run = sentence_through(target, dtype)
    assert run.weights is not None and run.weights.shape == (1, 4, 8, 8)
    t.close(run.weights, run.exact.weights, run.weights_bound, "the weight of word {column} in row {row} is off")


@pytest.mark.example(length=8, dim=8)
def test_the_variance_of_the_logits_of_four_heads(target: Target, dtype: str) -> None:
    """d_k = 8."""
    variance_is_divided_by_dim(target, dtype, heads=4)


@pytest.mark.example(length=8, dim=32)
def test_the_variance_of_the_logits_of_one_head(target: Target, dtype: str) -> None:
    """d_k = 32."""
    variance_is_divided_by_dim(target, dtype, heads=1)


def variance_is_divided_by_dim(target: Target, dtype: str, heads: int) -> None:
    """The variance of the raw dot products is exactly d_k times that of the logits that the target softmaxes.

    The raw ones are whole multiples of 1/256, exact in float64. The target's are read off its weights, ln w_ij, up to a
    constant of the row, which no variance sees; how far they may be off follows from the bound of the weights.
    """
    t = attention_of(target, dtype)
    x = np.round(embedded() * 8) / 16  # exact products, logits near enough for every weight to be seen
    q = split_heads(x, heads)  # (1, H, 8, d_k)
    dim = q.shape[-1]
    given = inputs(dtype, q, q[..., ::-1], q)
    raw = given.q @ given.k.swapaxes(-1, -2)
    visible = np.ones(raw.shape, dtype=bool)
    logits, error = logits_of(t.weights(given), visible)
    raw, logits = mean_free(raw, visible), mean_free(logits, visible)
    spread = error + error.mean(axis=-1, keepdims=True)
    allowed = dim * (spread * (2 * np.abs(logits) + spread)).mean(axis=-1) + 2.0**-46 * dim  # float64, numbers below 64
    assert np.isfinite(allowed).all()
    t.close(dim * (logits**2).mean(axis=-1), (raw**2).mean(axis=-1), allowed, "row {column}: the ratio is not d_k")


# ---------------------------------------------------------------- eight tokens


def eight_tokens(dtype: str, **options: Any) -> Inputs:
    """q, k, v (1, 1, 8, 32)."""
    return inputs(dtype, *(normal(2, name, (8, 32)) for name in "qkv"), **options)


def loop_weights(x: Inputs, visible: Array) -> Array:
    """(8, 8): one product, one exponential, one quotient at a time, in Python's floats."""
    q, k = x.q[0, 0].tolist(), x.k[0, 0].tolist()
    rows = []
    for i, q_i in enumerate(q):
        logits = [sum(a * b for a, b in zip(q_i, k_j, strict=True)) / sqrt(len(q_i)) for k_j in k]
        powers = [exp(s) if visible[i, j] else 0.0 for j, s in enumerate(logits)]
        rows.append([p / sum(powers) for p in powers])
    return np.array(rows)


def by_hand(run: Run) -> Array:
    """The bound of float64 arithmetic, for what this file computes itself."""
    return bound.weights_bound(run.exact, default_arithmetic("float64"))


@pytest.mark.example(length=8, dim=32)
def test_loop_weights_equal_matmul_weights(target: Target, dtype: str) -> None:
    """The target's weights are those of three plain loops."""
    weights_are_those_of_loops(target, dtype, causal=False)


@pytest.mark.example(needs=("is_causal",), length=8, dim=32)
def test_causal_loop_weights_equal_matmul_weights(target: Target, dtype: str) -> None:
    """Under the causal mask too."""
    weights_are_those_of_loops(target, dtype, causal=True)


def weights_are_those_of_loops(target: Target, dtype: str, causal: bool) -> None:
    t = attention_of(target, dtype)
    given = eight_tokens(dtype, is_causal=causal)
    read = t.weights(given)
    expected = loop_weights(given, t.visible(given)[0, 0])
    t.close(read.out[0, 0], expected, read.bound[0, 0] + by_hand(read.parts[0])[0, 0], "weight {column} of row {row} is off")


@pytest.mark.example(length=8, dim=32)
def test_row_three_is_the_hand_written_sum(target: Target, dtype: str) -> None:
    """out_3 = w_30·v_0 + … + w_37·v_7."""
    row_three(target, dtype, causal=False)


@pytest.mark.example(needs=("is_causal",), length=8, dim=32)
def test_causal_row_three_is_the_sum_of_four(target: Target, dtype: str) -> None:
    """With the causal mask only the first four terms are there."""
    row_three(target, dtype, causal=True)


def row_three(target: Target, dtype: str, causal: bool) -> None:
    t = attention_of(target, dtype)
    given = eight_tokens(dtype, is_causal=causal)
    run, v = t.run(given), given.v[0, 0]
    w = loop_weights(given, t.visible(given)[0, 0])[3]
    total = w[0] * v[0] + w[1] * v[1] + w[2] * v[2] + w[3] * v[3]
    if not causal:
        total = total + w[4] * v[4] + w[5] * v[5] + w[6] * v[6] + w[7] * v[7]
    rounding = by_hand(run)[0, 0, 3] @ np.abs(v) + 2.0**-53 * 8 * (w @ np.abs(v))
    t.close(run.out[0, 0, 3], total, run.bound[0, 0, 3] + rounding, "feature {column} of row 3 is not the weighted sum")


HOLES = np.array([[(i * j + i) % 3 != 1 or j == i for j in range(8)] for i in range(8)])  # every row sees a key
HOLES_AND_NOTHING = HOLES & (np.arange(8) != 5)[:, None]  # row 5 sees none


@pytest.mark.example(needs=("attn_mask",), mask_kinds=("bias", "minus_infinity"), dtypes=REACHING, length=8, dim=32)
def test_masking_with_a_large_number_is_masking_with_infinity(target: Target, dtype: str) -> None:
    """−1e10 before scaling: exp(−1e10/sqrt(32)) is 0 in every type, so that it hides wherever a row has a visible key.

    A row without one is where they part: −1e10 leaves the logits nearly equal and gives about the mean of all values.
    In float16 −1e10 is −inf by rounding, and there is nothing to compare.
    """
    t = attention_of(target, dtype)
    plain = eight_tokens(dtype)
    large = t.run(plain.but(mask=np.where(HOLES_AND_NOTHING, 0.0, -1e10 * plain.effective_scale)))
    infinite = t.run(plain.but(mask=np.where(HOLES_AND_NOTHING, 0.0, -np.inf)))
    sees = HOLES_AND_NOTHING.any(axis=-1)[:, None]
    t.close(large.out, infinite.out, large.bound + infinite.bound, "row {row} tells -1e10 and -inf apart", sees)
    t.inside(infinite, infinite.bound, "row {row} is off", sees)


@pytest.mark.example(needs=("attn_mask",), mask_kinds=("bool",), length=8, dim=32)
def test_masking_before_scaling_in_the_words_of_the_tutorial(target: Target, dtype: str) -> None:
    """masked_fill(-1e10), then scale, then softmax, written out in NumPy, is what a target gives for the bool mask."""
    t = attention_of(target, dtype)
    given = eight_tokens(dtype, mask=HOLES)
    run = t.run(given)
    logits = np.where(HOLES, given.q[0, 0] @ given.k[0, 0].T, -1e10) / sqrt(32)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    assert (weights[~HOLES] == 0).all()
    v = given.v[0, 0]
    own = by_hand(run)[0, 0] @ np.abs(v) + 2.0**-53 * 10 * (weights @ np.abs(v))
    t.close(run.out[0, 0], weights @ v, run.bound[0, 0] + own, "row {row} is not what the tutorial computes")


def test_a_row_without_keys_is_where_they_part() -> None:
    """The oracle itself: −1e10 gives about the mean of V where nothing is visible, −inf gives zero."""
    x = eight_tokens("float64")
    nothing = np.zeros((8, 8), dtype=bool)
    problem = oracle.Problem(x.q, x.k, x.v, x.effective_scale, bias=np.full((8, 8), -1e10))
    filled = oracle.solve(problem).out
    hidden = oracle.solve(oracle.Problem(x.q, x.k, x.v, x.effective_scale, visible=nothing)).out
    assert (hidden == 0).all() and (filled != 0).any()
    assert (np.abs(filled) <= np.abs(x.v).max(axis=2, keepdims=True)).all()


# ---------------------------------------------------------------- a batch


@pytest.mark.example(length=10, dim=64)
def test_a_batch_of_eight(target: Target, dtype: str) -> None:
    """Batch 8, length 10, 512 features projected to 64: q, k, v and the output are (8, 10, 64)."""
    t = attention_of(target, dtype)
    x = normal(3, "x", (8, 10, 512))
    q, k, v = (x @ (normal(3, name, (64, 512)) / sqrt(512)).T for name in MATRICES[:3])
    assert q.shape == k.shape == v.shape == (8, 10, 64)
    run = t.run(inputs(dtype, *(projected[:, None] for projected in (q, k, v))))
    assert run.out[:, 0].shape == (8, 10, 64)
    t.inside(run, run.bound, "token {row} of sequence {batch} is off")
