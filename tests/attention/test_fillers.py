"""What is required that the contract has no name for is given what changes nothing, and what its name says is put to the proof."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from properties import verify
from properties.attention.fillers import SMALL_TILE, fillers, words_of
from properties.engine.core.target import CannotRun, Target
from properties.engine.search.probe import make_target


def softmax(s: Any) -> Any:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def scores(q: Any, k: Any) -> Any:
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])


def learned(function: Callable[..., Any]) -> Target:
    return make_target(function.__name__, function)


def in_tiles(Q: Any, K: Any, V: Any, Br: Any, B_c: Any, rescaled: bool = True) -> Any:
    """The second of the algorithms of FlashAttention, on matrices."""
    out = np.zeros((len(Q), V.shape[1]), Q.dtype)
    for i in range(0, len(Q), Br):
        q = Q[i : i + Br]
        high, total, o = np.full((len(q), 1), -np.inf), np.zeros((len(q), 1)), np.zeros((len(q), V.shape[1]))
        for j in range(0, len(K), B_c):
            s = q @ K[j : j + B_c].T / np.sqrt(Q.shape[1])
            higher = np.maximum(high, s.max(1, keepdims=True))
            p, kept = np.exp(s - higher), np.exp(high - higher)
            total, o, high = total * kept + p.sum(1, keepdims=True), o * (kept if rescaled else 1) + p @ V[j : j + B_c], higher
        out[i : i + Br] = o / total
    return out


def without_rescale(Q: Any, K: Any, V: Any, Br: Any, B_c: Any) -> Any:
    return in_tiles(Q, K, V, Br, B_c, rescaled=False)


def test_sizes_of_tiles_are_small() -> None:
    target = learned(lambda Q, K, V, Br, B_c: in_tiles(Q, K, V, Br, B_c))
    assert {target.learned[name] for name in ("Br", "B_c")} == {f"{SMALL_TILE}, the size of a tile; no other value is tried"}
    assert "by" not in target.learned["axes"].partition(":")[2]


@pytest.mark.nightly
def test_a_mistake_between_tiles_is_found() -> None:
    assert not verify(lambda Q, K, V, Br, B_c: in_tiles(Q, K, V, Br, B_c), properties=("softmax",), cases=10).findings
    assert verify(without_rescale, properties=("softmax",), cases=10).findings


def test_a_tile_is_larger_where_a_small_one_is_not_taken() -> None:
    def of_sixteen(q: Any, k: Any, v: Any, block_size: int) -> Any:
        assert block_size >= 16
        return softmax(scores(q, k)) @ v

    assert learned(of_sixteen).learned["block_size"].startswith("16")


def by_segment(q: Any, k: Any, v: Any, segment_ids: Any) -> Any:
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return softmax(np.where(same, scores(q, k), -1e30)) @ v


def by_order(q: Any, k: Any, v: Any, segment_ids: Any) -> Any:
    same = segment_ids[:, None, :, None] >= segment_ids[:, None, None, :]
    return softmax(np.where(same, scores(q, k), -1e30)) @ v


def behind_a_prefix(q: Any, k: Any, v: Any, prefix_lengths: Any, more: int = 0) -> Any:
    at = np.arange(q.shape[2])
    seen = (at[:, None] >= at) | (at < prefix_lengths[:, None, None, None] + more)
    return softmax(np.where(seen, scores(q, k), -1e30)) @ v


def behind_one_more(q: Any, k: Any, v: Any, prefix_lengths: Any) -> Any:
    at = np.arange(q.shape[2])
    seen = (at[:, None] >= at) | (at <= prefix_lengths[:, None, None, None]) & (prefix_lengths > 0)[:, None, None, None]
    return softmax(np.where(seen, scores(q, k), -1e30)) @ v


@pytest.mark.parametrize(
    ("right", "wrong", "name"), [(by_segment, by_order, "segment_ids"), (behind_a_prefix, behind_one_more, "prefix_lengths")]
)
def test_a_name_says_what_other_values_hide(right: Callable[..., Any], wrong: Callable[..., Any], name: str) -> None:
    assert "asked in one call" in learned(right).learned[name] and not learned(right).wrong
    assert name in learned(wrong).wrong


def test_what_is_optional_is_asked_too() -> None:
    def optional(q: Any, k: Any, v: Any, segment_ids: Any = None) -> Any:
        return softmax(scores(q, k)) @ v if segment_ids is None else by_order(q, k, v, segment_ids)

    assert "segment_ids" in learned(optional).wrong


@pytest.mark.parametrize("usual", [True, False])
def test_a_temperature_is_a_scale(usual: bool) -> None:
    def warm(q: Any, k: Any, v: Any, temperature: float = 1.0) -> Any:
        return softmax(scores(q, k) / temperature) @ v

    def bare(q: Any, k: Any, v: Any, temperature: float) -> Any:
        return softmax(q @ k.swapaxes(-1, -2) / temperature) @ v

    target = learned(warm if usual else bare)
    assert "scale" in target.parameters and ("required" in target.learned["temperature"]) != usual
    assert not verify(warm if usual else bare, properties=("scaling",), cases=10).findings


def test_a_temperature_that_multiplies_is_wrong() -> None:
    def cold(q: Any, k: Any, v: Any, temperature: float = 1.0) -> Any:
        return softmax(scores(q, k) * temperature) @ v

    assert "temperature" in learned(cold).wrong


def test_the_root_of_a_temperature_is_none() -> None:
    def rooted(q: Any, k: Any, v: Any, temperature: float) -> Any:
        return softmax(q @ k.swapaxes(-1, -2) * temperature**-0.5) @ v

    assert "temperature" in learned(rooted).wrong


@pytest.mark.nightly
def test_a_value_is_guessed_only_where_the_answer_is_right_with_it() -> None:
    def flagged(q: Any, k: Any, v: Any, zorp: Any) -> Any:
        return softmax(scores(q, k)) @ v * (1 if zorp is False else 2)

    def never(q: Any, k: Any, v: Any, zorp: Any) -> Any:
        return softmax(scores(q, k)) @ v * 2

    assert learned(flagged).learned["zorp"].startswith("False")
    with pytest.raises(CannotRun, match=r"requires zorp.*none of the values"):
        learned(never)


def test_a_bias_of_heads_may_have_three_axes() -> None:
    def biased(q: Any, k: Any, v: Any, rel_bias: Any) -> Any:
        assert rel_bias.shape[0] == q.shape[1] and rel_bias.ndim == 3
        return softmax(scores(q, k) + rel_bias[None]) @ v

    assert learned(biased).learned["rel_bias"] == "attn_mask, added, of axes (h, l, s)"
    assert not verify(biased, properties=("masks",), cases=10).findings


def test_a_required_mask_may_have_three_axes() -> None:
    def graph(q: Any, k: Any, v: Any, adj: Any) -> Any:
        return softmax(np.where(adj[:, None].astype(bool), scores(q, k), -1e30)) @ v

    assert learned(graph).learned["adj"] == "attn_mask, True = seen, of axes (b, l, s)"


def test_lengths_that_hide_queries_are_not_those_of_keys() -> None:
    def padded(q: Any, k: Any, v: Any, lengths: Any = None) -> Any:
        seen = np.arange(max(q.shape[2], k.shape[2])) < (np.full(len(q), 99) if lengths is None else lengths)[:, None]
        out = softmax(np.where(seen[:, None, None, : k.shape[2]], scores(q, k), -1e30)) @ v
        return out * seen[:, None, : q.shape[2], None]

    assert learned(padded).untried["lengths"] == "it hides queries, too, not keys alone"


@pytest.mark.parametrize("name", ["BLOCK_M", "Br", "B_r", "kv_chunk", "q_tile_size", "blockSize"])
def test_names_of_tiles(name: str) -> None:

    assert fillers(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD))[0].value == SMALL_TILE
    assert words_of("kvBlockSize") >= {"kv", "block", "size"}
