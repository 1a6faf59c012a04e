"""What a callable does where nothing is said: a window, a cap under any name; and what only looks like a convention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nightly import more_by_night

torch = pytest.importorskip("torch")

from properties.catalogue import select
from properties.engine.core.target import CannotRun, Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan


def spoken(function: Any, **supports: Any) -> Target:
    target = make_target("mine", function, supports)
    return target.kind.handshake(target, "cpu")


def refuted(target: Target, *properties: str, cases: int = 20) -> set[str]:
    return {f.prop.name for f in verify_target(target, select(properties), Plan(examples=cases, shrink=False, strict=False)).findings}


def scores(q: Any, k: Any) -> Any:
    return q @ k.mT * max(q.shape[-1], 1) ** -0.5


def local(q: Any, k: Any, v: Any, window: int = 4, *, own: int = 0, bottom: bool = True) -> Any:
    """(heads, length, dim): causal, the last ``window`` keys; queries are the last tokens."""
    at = torch.arange(q.shape[1])[:, None] + (k.shape[1] - q.shape[1] if bottom else 0) - torch.arange(k.shape[1])
    return torch.where((at >= 0) & (at < window + own * (window < 100)), scores(q, k), -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("bottom", [True, False])
def test_a_window_by_default_is_called_without_one(bottom: bool) -> None:
    """What is always causal beside it keeps its corner, which is told."""

    def right(q: Any, k: Any, v: Any, window: int = 4) -> Any:
        return local(q, k, v, window, bottom=bottom)

    def wrong(q: Any, k: Any, v: Any, window: int = 4) -> Any:
        return local(q, k, v, window, own=int(k.shape[1] > 6), bottom=bottom)

    target = spoken(right, zero_sizes=False)
    assert target.learned["causality"].startswith(f"always, {'bottom-right' if bottom else 'top-left'};")
    assert target.learned["window"].startswith("window_size, one number: the keys that are seen, its own included")
    assert not refuted(target, "output_is_inside_the_bound", "window_edges_are_exact", "gradients_are_inside_the_bound")
    assert refuted(spoken(wrong, zero_sizes=False), "output_is_inside_the_bound", "window_edges_are_exact", cases=60)


@pytest.mark.parametrize("name", ["attn_logit_softcapping", "logit_cap", "attention_logits_soft_cap"])
def test_caps_have_many_names(name: str) -> None:
    space: dict[str, Any] = {"torch": torch, "scores": scores}
    exec(f"def attention(q, k, v, *, {name}=5.0):\n s = scores(q, k)\n c = {name}\n"
         " return (s if c is None else torch.tanh(s / c) * c).softmax(-1) @ v", space)  # fmt: skip
    target = spoken(space["attention"], zero_sizes=False)
    assert target.learned[name] == "softcap; None is passed for none" and not refuted(target, "output_is_inside_the_bound")


def test_a_word_that_is_any_condition_is_no_mask() -> None:
    """NumPy's where takes a word for True: then all keys are hidden, whatever it says."""

    def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        s = q @ k.T / np.sqrt(q.shape[-1])
        s = s if mask is None else np.where(mask, -np.inf, s)
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v

    target = spoken(attention, framework="numpy")
    assert "is_causal" not in target.parameters and target.learned["mask"] == "attn_mask, True = hidden"


def packed(qkv: Any, softmax_scale: float | None = None, causal: bool = False, return_attn_probs: bool = False, off: float = 0.0) -> Any:
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf) if causal else s
    out = (s.softmax(-1) @ v).transpose(1, 2)
    return (out, s.softmax(-1) + off) if return_attn_probs else out


def test_what_comes_back_is_what_its_axes_say() -> None:
    """Probabilities, where flash-attention's flag of that name gives a log-sum-exp; and of as many queries as keys there is one corner."""

    def off(qkv: Any, softmax_scale: float | None = None, causal: bool = False, return_attn_probs: bool = False) -> Any:
        return packed(qkv, softmax_scale, causal, return_attn_probs, 1e-3)

    target = spoken(packed, zero_sizes=False)
    assert target.learned["return_attn_probs"] == "the weights come back, too" and not target.wrong
    assert not refuted(target, "returned_weights_are_those_applied", "lse_is_the_log_of_the_sum", "output_is_inside_the_bound")
    assert refuted(spoken(off, zero_sizes=False), "returned_weights_are_those_applied")


def given_weights(x: Any, W_qkv: Any, b_qkv: Any, W_o: Any, b_o: Any, n_heads: int, *, shift: int = 1) -> Any:
    length, width = x.shape
    q, k, v = (np.stack(np.split(one, n_heads, axis=1)) for one in np.split(x @ W_qkv + b_qkv, 3, axis=1))
    s = q @ k.transpose(0, 2, 1) / np.sqrt(width // n_heads) - 1e10 * np.triu(np.ones((length, length)), k=shift)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.concatenate(list(e / e.sum(-1, keepdims=True) @ v), axis=1) @ W_o + b_o


@pytest.mark.nightly
def test_the_width_of_a_head_may_be_computed_from_that_of_the_tokens() -> None:
    """Square weights, then, even where others are answered, with another scale."""

    def wrong(x: Any, W_qkv: Any, b_qkv: Any, W_o: Any, b_o: Any, n_heads: int) -> Any:
        return given_weights(x, W_qkv, b_qkv, W_o, b_o, n_heads, shift=2)

    target = spoken(given_weights, framework="numpy")
    assert "as wide as the tokens" in target.learned["weights"] and target.learned["causality"].startswith("always, top-left")
    assert not refuted(target, "output_is_inside_the_bound", "causality", cases=more_by_night(3, 8))
    assert refuted(spoken(wrong, framework="numpy"), "output_is_inside_the_bound", cases=8)


def sigmoid_attention(q: Any, k: Any, v: Any) -> Any:
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1] or 1)
    return 1 / (1 + np.exp(-s)) @ v


def CosineSimAttention(query: Any, key: Any, value: Any) -> Any:
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    e = np.exp(10 * np.einsum("blhd,bshd->bhls", query, key))
    return np.einsum("bhls,bshd->blhd", e / e.sum(-1, keepdims=True), value)


def linear_time_attention(q: Any, k: Any, v: Any) -> Any:
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1] or 1)
    e = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    return e / e.sum(-1, keepdims=True) @ v


@pytest.mark.nightly
@pytest.mark.parametrize(("function", "word"), [(sigmoid_attention, "sigmoid"), (CosineSimAttention, "cosine")])
def test_weights_of_another_kind_are_told_in_one_sentence(function: Any, word: str) -> None:
    with pytest.raises(CannotRun, match=f"is no softmax attention, which alone is checked here: its name says {word}"):
        make_target(function.__name__, function)
    with pytest.raises(CannotRun, match='contract = "linear"'):
        make_target("linear_attention", sigmoid_attention)


def test_who_is_called_so_and_answers_as_a_softmax_is_one() -> None:
    assert not refuted(make_target("linear_time_attention", linear_time_attention), "softmax", cases=4)


def test_who_is_not_called_so_is_refuted() -> None:
    assert refuted(make_target("attention", sigmoid_attention), "softmax", cases=4)


def test_a_window_by_default_in_float32_is_told_to_be_computed_so() -> None:
    torch = pytest.importorskip("torch")

    def mine(q: Any, k: Any, v: Any, attention_window: int = 4) -> Any:
        places = torch.arange(q.shape[1])
        far = (places[:, None] - places).abs() > attention_window
        s = torch.einsum("blhd,bshd->bhls", q, k) / q.shape[-1] ** 0.5
        weights = torch.softmax(s.masked_fill(far, -torch.inf), -1, dtype=torch.float32).to(v.dtype)
        return torch.einsum("bhls,bshd->blhd", weights, v)

    target = make_target("mine", mine)
    target = target.kind.handshake(target, "cpu")
    assert target.differs["float64"].startswith("computed in float32") and target.supports.window == (4, 4)
    assert not refuted(target, "output_is_inside_the_bound", "softmax", cases=6)
