"""The built-in attentions load, agree with one another, and refuse what they cannot do.

Expectations are exact wherever arithmetic allows it. Logits that differ by 1024 or more leave the softmax no choice:
every weight is exactly 0 or 1, in every dtype, any order of summation and any tiling.
"""

import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impls.catalogue import CATALOGUE, Entry, load, unavailable
from impls.contract import check_attention
from properties.exact import bound, oracle
from properties.exact.arithmetic import arithmetic

ROOT = Path(__file__).parents[2]
HERE = [entry for entry in CATALOGUE if unavailable(entry) is None and "jax" not in entry.needs]  # for those: test_jax.py
ATTENTIONS = [entry for entry in HERE if entry.contract == "attention"]
LAYERS = [entry for entry in HERE if entry.contract == "multihead"]
OURS = [entry for entry in ATTENTIONS if not entry.name.startswith("torch_sdpa")]
NAMED = {"ids": lambda value: getattr(value, "name", None)}
KEYS = {
    "contract",
    "max_length",
    "returns_weights",
    "framework",
    "devices",
    "dtypes",
    "layout",
    "head_dims",
    "parameters",
    "causal",
    "empty_rows",
    "masked_nan",
    "arithmetic",
    "mask_kinds",
    "mask_axes",
    "value_dim",
    "pairing",
    "mask_and_causal",
    "scales",
    "zero_sizes",
}


def run(entry: Entry, *arrays: np.ndarray, dtype: str = "float64", **options: Any) -> Any:
    """The entry on these arrays in its own framework; float64 NumPy comes back."""
    import torch

    def into(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: into(each) for name, each in value.items()}
        if not isinstance(value, np.ndarray):
            return value
        if load(entry).supports["framework"] == "numpy":
            return value if value.dtype == bool else value.astype(dtype)
        tensor = torch.from_numpy(value.copy())
        return tensor if value.dtype == bool else tensor.to(getattr(torch, dtype))

    seen: dict[int, Any] = {}  # the same array stays the same tensor: self-attention is recognised by identity
    inputs = [seen.setdefault(id(array), into(array)) for array in arrays]
    result = load(entry)(*inputs, **{name: into(value) for name, value in options.items()})

    def back(value: Any) -> Any:
        return value.double().numpy() if isinstance(value, torch.Tensor) else value.astype(np.float64)

    return tuple(None if each is None else back(each) for each in result) if type(result) is tuple else back(result)


def decided_case(queries: int = 5, keys: int = 7, heads: int = 4, kv_heads: int = 2) -> tuple[np.ndarray, ...]:
    """q = ±1, k_j = 1024 j: a row picks its last visible key, or its first."""
    q = np.where(np.arange(2 * heads * queries) % 3 == 0, -1.0, 1.0).reshape(2, heads, queries, 1)
    k = np.broadcast_to(1024.0 * np.arange(keys).reshape(keys, 1), (2, kv_heads, keys, 1)).copy()
    v = np.arange(1.0, 2 * kv_heads * keys + 1).reshape(2, kv_heads, keys, 1)
    return q, k, v


def decided_output(q: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
    batch, heads, queries, _ = q.shape
    group = heads // v.shape[1]
    visible = np.broadcast_to(visible, (batch, heads, queries, v.shape[2]))
    out = np.zeros((batch, heads, queries, 1))
    for b, h, i in product(range(batch), range(heads), range(queries)):
        seen = np.flatnonzero(visible[b, h, i])
        if seen.size:
            out[b, h, i] = v[b, h // group, seen[-1 if q[b, h, i, 0] > 0 else 0]]
    return out


def holes(*shape: int) -> np.ndarray:
    """A mask with holes, a row without a key, and a first half that hides everything from the last row."""
    visible = np.arange(np.prod(shape)).reshape(shape) % 3 != 1
    visible[..., 1, :] = False
    visible[..., -1, : shape[-1] // 2] = False
    return visible


def test_the_catalogue_imports_nothing_heavy():
    code = "import sys, impls.catalogue; print(sorted({'torch', 'scipy', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("entry", CATALOGUE, **NAMED)
def test_every_entry_is_named_after_what_it_loads(entry):
    for package in entry.needs:
        pytest.importorskip(package)
    assert entry.name == entry.target.replace(":", ".")
    supports = load(entry).supports
    assert set(supports) <= KEYS
    assert set(supports["arithmetic"]) == set(supports["dtypes"])
    assert tuple(supports.get("devices", ["cpu"])) == entry.devices


def test_token_mixing_is_not_in_the_list():
    assert not [entry for entry in CATALOGUE if "mixing" in entry.target]


@pytest.mark.parametrize("entry", ATTENTIONS, **NAMED)
def test_decided_rows_pick_one_key_in_every_dtype(entry):
    q, k, v = decided_case()
    visible, causal = holes(2, 1, 5, 7), np.tri(5, 7, dtype=bool)
    calls = [
        ({}, np.array(True)),
        ({"attn_mask": visible}, visible),
        ({"attn_mask": np.where(visible, 0.0, -np.inf)}, visible),
        ({"is_causal": True}, causal),
    ]
    if load(entry).supports.get("mask_and_causal", True):
        calls.append(({"attn_mask": visible, "is_causal": True}, visible & causal))
    for dtype, (options, seen) in product(load(entry).supports["dtypes"], calls):
        out = run(entry, q, k, v, dtype=dtype, scale=1.0, enable_gqa=True, **options)
        np.testing.assert_array_equal(out, decided_output(q, v, seen), err_msg=f"{dtype} {list(options)}")


@pytest.mark.parametrize("entry", ATTENTIONS, **NAMED)
def test_equal_logits_average_the_visible_values(entry):
    q, k, v = decided_case()
    visible = holes(5, 7)
    count = visible.sum(-1, keepdims=True)
    mean = np.where(count, (visible @ v.repeat(2, axis=1)) / np.maximum(count, 1), 0)
    # S additions, and at most 8 roundings of exp, log, product, quotient and result, each relative to max |v|
    bound = (7 + 8) * np.finfo(np.float64).eps * v.max()
    out = run(entry, q, k, v, attn_mask=visible, scale=0.0, enable_gqa=True)
    assert np.abs(out - mean).max() <= bound


@pytest.mark.parametrize("entry", [e for e in ATTENTIONS if e in OURS or load(e).supports.get("zero_sizes", True)], **NAMED)
@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "dim"])
def test_zero_sizes_give_zeros(entry, empty):
    size = {"batch": 2, "heads": 3, "queries": 4, "keys": 5, "dim": 6} | {empty: 0}
    q = np.ones((size["batch"], size["heads"], size["queries"], size["dim"]))
    k = np.ones((size["batch"], size["heads"], size["keys"], size["dim"]))
    if not load(entry).supports.get("zero_sizes", True) and empty in ("heads", "keys", "dim"):  # as it declares
        with pytest.raises((IndexError, ZeroDivisionError)):
            run(entry, q, k, k)
        return
    out = run(entry, q, k, k)
    assert out.shape == q.shape
    assert not out.any() or empty == "dim"


@pytest.mark.parametrize("entry", ATTENTIONS + LAYERS, **NAMED)
def test_inputs_stay_and_outputs_are_new(entry):
    torch = pytest.importorskip("torch")
    if entry.contract == "attention":
        tensors = dict(zip("qkv", (torch.from_numpy(x) for x in decided_case(kv_heads=4)), strict=True))
        tensors["attn_mask"] = torch.from_numpy(np.where(holes(5, 7), 0.0, -np.inf))
        options = {}
    else:
        x = torch.from_numpy(tokens())
        tensors = {"query": x, "key": x, "value": x, "attn_mask": torch.ones(5, 5, dtype=torch.bool)}
        options = {"weights": {name: torch.from_numpy(w) for name, w in identity_layer().items()}, "num_heads": 2}
    if load(entry).supports["framework"] == "numpy":
        tensors = {name: tensor.numpy() for name, tensor in tensors.items()}
        options = options | {"weights": {n: w.numpy() for n, w in options["weights"].items()}} if options else options
    before = {name: np.asarray(tensor).copy() for name, tensor in tensors.items()}
    random_state = torch.get_rng_state()
    result = load(entry)(**tensors, **options)
    for out in result if isinstance(result, tuple) else (result,):
        assert out is None or not any(np.shares_memory(np.asarray(out), np.asarray(each)) for each in tensors.values())
    for name, value in before.items():
        np.testing.assert_array_equal(np.asarray(tensors[name]), value)
    assert torch.equal(random_state, torch.get_rng_state())


WRONG = {
    "q has dim 4, k has 3": ((1, 2, 3, 4), (1, 2, 5, 3), (1, 2, 5, 4), None, False),
    "k has 5 keys, v has 6": ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 6, 4), None, False),
    "batches differ": ((1, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), None, False),
    "pass enable_gqa=True to share": ((1, 2, 3, 4), (1, 1, 5, 4), (1, 1, 5, 4), None, False),
    "3 kv heads do not divide 4": ((1, 4, 3, 4), (1, 3, 5, 4), (1, 3, 5, 4), None, True),
    "k has 2 heads, v has 4": ((1, 4, 3, 4), (1, 2, 5, 4), (1, 4, 5, 4), None, True),
    "q must be .batch, heads, length, dim.": ((2, 3, 4), (2, 5, 4), (2, 5, 4), None, False),
    "shape .3, 4. does not broadcast": ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (3, 4), False),
    "shape .3, 5. does not broadcast": ((1, 2, 1, 4), (1, 2, 5, 4), (1, 2, 5, 4), (3, 5), False),
}


@pytest.mark.parametrize("entry", OURS, **NAMED)
@pytest.mark.parametrize("message", WRONG)
def test_wrong_shapes_raise(entry, message):
    q, k, v, mask, enable_gqa = WRONG[message]
    options = {} if mask is None else {"attn_mask": np.ones(mask, dtype=bool)}
    with pytest.raises(ValueError, match=message):
        run(entry, np.ones(q), np.ones(k), np.ones(v), enable_gqa=enable_gqa, **options)


def test_group_size():
    q, k = np.empty((1, 6, 1, 1)), np.empty((1, 2, 1, 1))
    assert check_attention(q, k, k, None, enable_gqa=True) == 3
    assert check_attention(q, q, q, None, enable_gqa=False) == 1


# Layers


def tokens() -> np.ndarray:
    """(1, 5, 2): whole numbers, so that with keys scaled by 1024 every row is decided"""
    return np.array([[[1.0, -5.0], [-2.0, 4.0], [3.0, -3.0], [-4.0, 2.0], [5.0, -1.0]]])


def identity_layer() -> dict[str, np.ndarray]:
    one = np.eye(2)
    return {"w_q": one, "w_k": 1024 * one, "w_v": one, "w_o": one[::-1].copy(), "b_o": np.array([8.0, 16.0])}


def decided_layer(visible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Head h is feature h: token i takes the largest visible feature if its own is positive, else the smallest."""
    x = tokens()[0]
    weights = np.zeros((1, 2, 5, 5))
    for h, i in product(range(2), range(5)):
        seen = np.flatnonzero(visible[i])
        weights[0, h, i, seen[np.argmax(x[seen, h] * np.sign(x[i, h]))]] = 1
    heads = np.stack([weights[0, h] @ x[:, h] for h in range(2)], axis=-1)  # (5, 2)
    return (heads[:, ::-1] + [8.0, 16.0])[None], weights


@pytest.mark.parametrize("entry", LAYERS, **NAMED)
def test_layers_pick_one_token_in_every_dtype(entry):
    x = tokens()
    padding = np.array([[False, False, False, True, False]])
    full, causal = np.ones((5, 5), dtype=bool), np.tri(5, dtype=bool)
    ring = np.eye(5, dtype=bool) | np.roll(np.eye(5, dtype=bool), 1, axis=1) | causal[:, :1]
    calls = [
        ({}, full),
        ({"attn_mask": ring}, ring),
        ({"attn_mask": np.where(ring, 0.0, -np.inf)[None, None]}, ring),
        ({"is_causal": True}, causal),
        ({"key_padding_mask": padding}, full & ~padding),
        ({"attn_mask": ring, "is_causal": True, "key_padding_mask": padding}, ring & causal & ~padding),
        ({"attn_mask": np.where(ring, 0.0, -np.inf), "key_padding_mask": padding}, ring & ~padding),
    ]
    for dtype, (options, visible) in product(load(entry).supports["dtypes"], calls):
        out, weights = run(entry, x, x, x, identity_layer(), dtype=dtype, num_heads=2, **options)
        expected, expected_weights = decided_layer(visible)
        np.testing.assert_array_equal(out, expected, err_msg=f"{dtype} {list(options)}")
        if weights is not None:
            np.testing.assert_array_equal(weights, expected_weights, err_msg=f"{dtype} {list(options)}")


def test_weights_come_when_asked_for():
    x = tokens()
    for entry in LAYERS:
        asked = {"torch_mha.eval_weights": True, "torch_mha.eval_fast": False}.get(entry.name)
        for need_weights in (True, False) if asked is None else (asked,):
            options = {"need_weights": need_weights} if asked is None else {}
            _, weights = run(entry, x, x, x, identity_layer(), num_heads=2, **options)
            assert (weights is not None) == need_weights, entry.name


# Online softmax


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("block", range(1, 10))
def test_any_tiles_give_the_textbook(block, reverse):
    from impls import loops
    from impls.online_softmax import Blocked

    random = np.random.default_rng(block)
    q, k, v = (random.normal(size=(1, 2, length, 4)) for length in (5, 7, 7))
    late = np.arange(7) >= np.array([0, 7, 3, 5, 6])[:, None]  # leading tiles hidden; row 1 sees nothing
    # An exponent is off by D + 4 roundings of Σ|q k|, on either side; S terms are summed and rescaled at most S times
    size = np.abs(q).max() * np.abs(k).sum(-1).max()
    bound = (2 * (4 + 4) * size + 2 * 7 + 16) * 2 * np.finfo(np.float64).eps * np.abs(v).max()
    for options in ({}, {"is_causal": True}, {"attn_mask": late}, {"attn_mask": np.where(late, 0.5, -np.inf)}):
        out = Blocked(block, reverse)(q, k, v, **options)
        assert np.abs(out - loops.attention(q, k, v, **options)).max() <= bound
    assert not Blocked(block, reverse)(q, k, v, attn_mask=late)[:, :, 1].any()


@pytest.mark.parametrize("parts", range(1, 10))
def test_any_parts_give_the_textbook(parts):
    from impls.online_softmax import SplitKV

    q, k, v = decided_case()
    for visible in (holes(5, 7), np.arange(7) >= np.arange(5)[:, None] + 3):
        out = SplitKV(parts)(q, k, v, attn_mask=visible, scale=1.0, enable_gqa=True)
        np.testing.assert_array_equal(out, decided_output(q, v, visible))


def test_parts_survive_a_row_of_the_smallest_number():
    """Every key at finfo.min: all logits are equal, and a log-sum-exp near -3e38 must not lose its logarithm."""
    from impls.online_softmax import SplitKV

    q, k, v = (np.ones((1, 1, length, 2), dtype=np.float32) for length in (1, 7, 7))
    out = SplitKV(3)(q, k, v, attn_mask=np.full((1, 7), np.finfo(np.float32).min))
    # All logits are the same number, which a softmax does not see: the bound is that of the call without the mask.
    problem = oracle.Problem(*(x.astype(np.float64) for x in (q, k, v)), scale=2**-0.5)
    assert (np.abs(out.astype(np.float64) - 1) <= bound.rigorous(oracle.solve(problem), arithmetic("same+lse", "float32"))).all()


# Token mixing


def test_token_mixing_sees_the_future():
    from impls import loops

    random = np.random.default_rng(0)
    x = random.normal(size=(1, 1, 4, 3))
    later = x.copy()
    later[:, :, 3] += 1
    for attention, leaks in ((loops.attention, False), (loops.token_mixing, True)):
        before = attention(x, x, x, is_causal=True)[:, :, :3]
        after = attention(later, later, later, is_causal=True)[:, :, :3]
        assert np.array_equal(before, after) is not leaks


# Teaching modules


def test_modules_train():
    torch = pytest.importorskip("torch")
    from impls.torch_manual import AttentionHead, MultiHeadAttention, SelfAttention

    torch.manual_seed(0)
    x = torch.randn(2, 6, 8)
    causal = torch.ones(6, 6).tril()
    causal[0] = 0  # a row that sees nothing must not poison the others
    layers = [
        (SelfAttention(8), lambda layer: layer(x), x),
        (AttentionHead(8, 4), lambda layer: layer(x, mask=causal), x[..., :4]),
        (MultiHeadAttention(8, 2), lambda layer: layer(x, x, x, mask=causal)[0], x),
    ]
    for layer, forward, target in layers:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = (forward(layer) - target).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert all(later < earlier for earlier, later in pairwise(losses)), losses


def test_gradients_reach_the_weights_that_were_given():
    torch = pytest.importorskip("torch")
    from impls import torch_manual, torch_mha

    x = torch.from_numpy(tokens())
    for multihead in (torch_manual.multihead, torch_mha.train):
        weights = {name: torch.from_numpy(w).requires_grad_() for name, w in identity_layer().items()}
        multihead(x, x, x, weights, num_heads=2)[0].sum().backward()
        assert all(w.grad is not None for w in weights.values())
        np.testing.assert_array_equal(weights["b_o"].grad, [5.0, 5.0])  # one for each token


def test_split_and_concatenate_are_inverse():
    torch = pytest.importorskip("torch")
    from impls.torch_manual import MultiHeadAttention

    layer, x = MultiHeadAttention(12, 3), torch.arange(2.0 * 5 * 12).view(2, 5, 12)
    assert layer.split(x).shape == (2, 3, 5, 4)
    assert torch.equal(layer.split(x)[:, 1], x[..., 4:8])
    assert torch.equal(layer.concatenate(layer.split(x)), x)


# What cannot run says so


def test_entries_that_cannot_run_say_why(monkeypatch):
    torch = pytest.importorskip("torch")
    by_name = {entry.name: entry for entry in CATALOGUE}
    missing = Entry("a.b", "a:b", "attention", ("a_package_nobody_has",), "")
    assert unavailable(missing) == "needs a_package_nobody_has, which is not installed"
    assert unavailable(by_name["loops.attention"], "cuda") == "runs on cpu only"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("torch_sdpa.efficient", "torch_sdpa.cudnn", "torch_sdpa.flash_cuda"):
        assert unavailable(by_name[name]) == "needs CUDA"
    assert unavailable(by_name["torch_sdpa.math"]) is None
    assert unavailable(by_name["torch_sdpa.math"], "cuda:0") == "needs CUDA"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert unavailable(by_name["torch_sdpa.cudnn"], "cuda:0") is None
    assert unavailable(by_name["torch_sdpa.cudnn"], "cpu") == "runs on cuda only"


@pytest.mark.filterwarnings("ignore")  # PyTorch says why it declines
def test_a_backend_that_cannot_serve_raises_and_leaves_no_trace():
    torch = pytest.importorskip("torch")
    from impls import torch_sdpa

    def enabled() -> list[bool]:
        cuda = torch.backends.cuda
        return [cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()]

    before = enabled()
    q, k, v = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 5)
    for attention in (torch_sdpa.flash, torch_sdpa.efficient, torch_sdpa.cudnn):
        with pytest.raises(RuntimeError):
            attention(q, k, v)  # value_dim differs; and the tensors lie on the CPU
    assert torch.equal(torch_sdpa.math(q, k, v), torch.ones(1, 1, 2, 5))
    assert enabled() == before
