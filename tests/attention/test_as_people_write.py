"""What strangers' functions ask for, or leave out, that a checker has to understand: each right one, and beside it one mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from properties import verify
from properties.attention.window import usual_slopes
from properties.engine.core.target import CannotRun, Target
from properties.engine.search.probe import make_target


def spoken(function: Callable[..., Any]) -> Target:
    target = make_target(function.__name__, function)
    return target.kind.handshake(target, "cpu")


def softmax(s: Any) -> Any:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_a_scale_of_float32_is_told_and_a_slight_mistake_is_not_taken_for_one() -> None:
    def tutorial(q: Any, k: Any, v: Any) -> Any:
        return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(np.float32(k.shape[-1]))) @ v

    def slight(q: Any, k: Any, v: Any) -> Any:
        return softmax(q @ np.swapaxes(k, -1, -2) / (k.shape[-1] ** 0.5 + 1e-7)) @ v

    assert spoken(tutorial).differs["float64"].startswith("its scale is computed in float32")
    assert "float64" in spoken(slight).dtypes
    assert verify(slight, properties=("scaling",), cases=5).findings


def test_lengths_that_are_answered_are_asked() -> None:
    """A last partial tile is left out: of lengths that are multiples of its size it is right."""

    def whole_tiles(q: Any, k: Any, v: Any, size: int = 8) -> Any:
        out, total = np.zeros((len(q), v.shape[1])), np.zeros((len(q), 1))
        for at in range(0, len(k) // size * size, size):
            p = np.exp(q @ k[at : at + size].T / np.sqrt(q.shape[1]))
            out, total = out + p @ v[at : at + size], total + p.sum(1, keepdims=True)
        return out / np.maximum(total, 1e-300)

    verdict = verify(whole_tiles, properties=("output_is_inside_the_bound",), cases=5)
    assert "multiples" not in verdict.report.target.learned and verdict.findings


@pytest.mark.parametrize("corner", ["top-left", "bottom-right"])
def test_no_more_queries_than_keys(corner: str) -> None:
    """Its corner is asked where there are fewer queries than keys."""

    def always_causal(q: Any, k: Any, v: Any) -> Any:
        more = k.shape[2] - q.shape[2]
        assert more >= 0
        hidden = torch.ones(q.shape[2], k.shape[2]).triu(1 + (more if corner == "bottom-right" else 0)).bool()
        return (q @ k.mT * max(q.shape[3], 1) ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    target = spoken(always_causal)
    assert target.supports.causal == corner
    assert target.learned["lengths"].startswith("no more queries than keys")
    assert not verify(always_causal, properties=("causality",), cases=10).findings


def sinks_of_one_sequence(Q: Any, K: Any, V: Any, S: Any, sm_scale: Any, sliding_window: int = 0, more: int = 0) -> Any:
    """As the reference of gpt-oss: (tokens, heads of keys, group, dim), one sink a head, always causal."""
    n, heads, group, dim = Q.shape
    assert K.shape == V.shape == (n, heads, dim)
    at = torch.arange(n)
    back = at[:, None] - at
    hidden = (back < 0) | ((back >= sliding_window + more) if sliding_window else back < 0)
    s = torch.einsum("qhgd,khd->hgqk", Q, K) * sm_scale
    s = torch.cat([s.masked_fill(hidden, -torch.inf), S.reshape(heads, group, 1, 1).expand(-1, -1, n, 1).to(s.dtype)], -1)
    return torch.einsum("hgqk,khd->qhgd", s.softmax(-1)[..., :-1], V).reshape(n, -1)


@pytest.mark.nightly
def test_a_letter_may_be_sinks() -> None:
    def sdpa(Q: Any, K: Any, V: Any, S: Any, sm_scale: Any, sliding_window: int = 0) -> Any:
        return sinks_of_one_sequence(Q, K, V, S, sm_scale, sliding_window)

    def wide(Q: Any, K: Any, V: Any, S: Any, sm_scale: Any, sliding_window: int = 0) -> Any:
        return sinks_of_one_sequence(Q, K, V, S, sm_scale, sliding_window, more=1)

    target = spoken(sdpa)
    assert {"sinks", "window_size", "scale"} <= set(target.parameters)
    assert not target.wrong and not verify(sdpa, properties=("features",), cases=10).findings
    assert spoken(wide).learned["sliding_window"] != target.learned["sliding_window"]


@pytest.mark.nightly
@pytest.mark.parametrize("after", [True, False])
def test_a_cap_a_root_and_heads_of_keys_that_are_required(after: bool) -> None:
    """As Gemma 2: the mask is added behind the cap, or, by mistake, before it."""

    def capped(
        q: Any, k: Any, v: Any, attention_mask: Any, num_heads: int, num_kv_heads: int, softcap: float, query_pre_attn_scalar: float = 256.0
    ) -> Any:
        b, n, dim = len(q), q.shape[1], q.shape[2] // num_heads
        q, k, v = (x.view(b, -1, h, dim).transpose(1, 2) for x, h in ((q, num_heads), (k, num_kv_heads), (v, num_kv_heads)))
        k, v = (x.repeat_interleave(num_heads // num_kv_heads, 1) for x in (k, v))
        w = q @ k.mT * query_pre_attn_scalar**-0.5 + (0 if after else attention_mask)
        w = softcap * torch.tanh(w / softcap) + (attention_mask if after else 0)
        return (w.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)

    target = spoken(capped)
    assert {"softcap", "attn_mask", "scale", "enable_gqa"} <= set(target.parameters)
    assert target.learned["num_kv_heads"] == "the number of heads of keys"
    assert bool(verify(capped, properties=("features", "masks"), cases=15).findings) != after


def picogpt(x: Any, c_attn: Any, c_proj: Any, n_head: int, merge: bool = True) -> Any:
    """GPT-2 on one sequence: weights and biases in dictionaries, always causal, NaN in halves (0 · −inf)."""
    q, k, v = np.split(x @ c_attn["w"] + c_attn["b"], 3, axis=-1)
    n = len(x)
    q, k, v = (y.reshape(n, n_head, -1).transpose(1, 0, 2) for y in (q, k, v))
    hidden = (1 - np.tri(n, dtype=x.dtype)) * -1e10
    out = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]) + hidden) @ v
    return (out.transpose(1, 0, 2) if merge else out).reshape(n, -1) @ c_proj["w"] + c_proj["b"]


def mha(x: Any, c_attn: Any, c_proj: Any, n_head: int) -> Any:
    return picogpt(x, c_attn, c_proj, n_head)


@pytest.mark.nightly
def test_right_weights_in_dictionaries() -> None:
    assert not verify(mha, properties=("heads",), cases=3).findings


@pytest.mark.nightly
def test_weights_in_dictionaries() -> None:
    def scrambled(x: Any, c_attn: Any, c_proj: Any, n_head: int) -> Any:
        return picogpt(x, c_attn, c_proj, n_head, merge=False)

    target = spoken(mha)
    assert '{"w", "b"}' in target.learned["weights"] and "NaN comes back" in target.differs["float16"]
    assert verify(scrambled, properties=("heads",), cases=3).findings


def turned_by_places(q: Any, k: Any, v: Any, positions: Any, rotary_dim: int, mixed: bool = False) -> Any:
    """(batch, length, heads, dim): the first features are turned, neighbours together; by a mistake by the angles of halves."""

    def turn(x: Any) -> Any:
        angles = positions[..., None] * 10000.0 ** (-np.arange(0, rotary_dim, 2) / max(rotary_dim, 1))
        wide = np.concatenate([angles, angles], -1) if mixed else np.repeat(angles, 2, -1)
        part = x[..., :rotary_dim]
        other = np.stack([-part[..., 1::2], part[..., ::2]], -1).reshape(part.shape)
        done = part * np.cos(wide)[:, :, None] + other * np.sin(wide)[:, :, None]
        return np.concatenate([done, x[..., rotary_dim:]], -1).transpose(0, 2, 1, 3)

    q, k = turn(q), turn(k)
    return (softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


@pytest.mark.nightly
def test_positions_that_turn() -> None:
    def right(q: Any, k: Any, v: Any, positions: Any, rotary_dim: int) -> Any:
        return turned_by_places(q, k, v, positions, rotary_dim)

    def wrong(q: Any, k: Any, v: Any, positions: Any, rotary_dim: int) -> Any:
        return turned_by_places(q, k, v, positions, rotary_dim, mixed=True)

    assert not make_target("right", right).wrong and "distances alone matter" in str(make_target("right", right).learned)
    assert "later positions at the same distances change the answer" in str(make_target("wrong", wrong).wrong)


def test_first_tokens_beyond_a_window_and_all_of_the_best_keys() -> None:
    def streaming(q: Any, k: Any, v: Any, *, window: int, n_sink: int = 4) -> Any:
        back = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
        seen = (back >= 0) & ((back < window) | (torch.arange(k.shape[2]) < n_sink))
        return (q @ k.mT * max(q.shape[3], 1) ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    def best(q: Any, k: Any, v: Any, topk: int) -> Any:
        s = q @ k.mT * max(q.shape[3], 1) ** -0.5
        return s.masked_fill(s < s.topk(topk, -1).values[..., -1:], -torch.inf).softmax(-1) @ v

    assert "window_size" in make_target("streaming", streaming).parameters
    assert not verify(streaming, properties=("features",), cases=10).findings
    assert make_target("best", best).learned["topk"].startswith("the number of keys")


def test_a_cap_by_default_that_no_word_switches_off_and_a_mask_without_axes() -> None:
    def capped(q: Any, k: Any, v: Any, attention_mask: Any = None, logit_cap: float = 50.0) -> Any:
        s = logit_cap * torch.tanh(q @ k.mT * max(q.shape[3], 1) ** -0.5 / logit_cap)
        return (s if attention_mask is None else s + attention_mask[..., : k.shape[2]]).softmax(-1) @ v

    target = spoken(capped)
    assert "softcap" in target.parameters and "masks without axes" in target.refuses
    assert not verify(capped, properties=("masks", "features"), cases=10).findings


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("third", "said"), [(0.25, "0.25, as ALiBi's for 3 heads do"), (0.125, "0.125, where ALiBi's for 3 heads are")])
def test_slopes_within_are_told_and_not_checked(causal: bool, third: float, said: str) -> None:
    """Nobody's logits are compared with some that have none."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        slopes = torch.tensor([0.0625, 0.00390625, third], dtype=q.dtype)[: q.shape[1], None, None]
        at = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return (q @ k.mT / q.shape[-1] ** 0.5 - slopes * at.abs()).masked_fill((at < 0) & causal, -torch.inf).softmax(-1) @ v

    with pytest.raises(CannotRun, match=f"has ALiBi within.* {said}"):
        make_target("mine", attention)


def test_usual_slopes() -> None:
    assert usual_slopes(2) == (2.0**-4, 2.0**-8) and usual_slopes(3) == (2.0**-4, 2.0**-8, 2.0**-2)
    assert usual_slopes(8) == tuple(2.0**-n for n in range(1, 9)) and usual_slopes(1) == (2.0**-8,)
