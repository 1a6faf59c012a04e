"""A mask and a corner that are documented one way, and go the other, are wrong; as documented they are right, whatever their names."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from properties.engine.core.target import Target
from properties.engine.search.probe import make_target


def spoken(thing: Any) -> Target:
    target = make_target("mine", thing)
    return target.kind.handshake(target, "cpu")


def attend(q: Any, k: Any, v: Any, hidden: Any = None) -> Any:
    s = q @ k.mT * max(q.shape[-1], 1) ** -0.5
    return (s if hidden is None else s.masked_fill(hidden, -1e9)).softmax(-1) @ v


def test_the_polarity_of_a_mask() -> None:
    def as_it_says(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        """mask: True where a key is ignored."""
        return attend(q, k, v, mask)

    def otherwise(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        """mask: True where a key is ignored."""
        return attend(q, k, v, None if mask is None else ~mask)

    assert not spoken(as_it_says).wrong
    assert "it is seen" in spoken(otherwise).wrong["mask"]


def test_a_name_of_pytorch_with_words_of_its_own() -> None:
    def own(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
        """attn_mask: True marks keys that are hidden."""
        return attend(q, k, v, attn_mask)

    def silent(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
        return attend(q, k, v, attn_mask)

    assert not spoken(own).wrong and "so its documentation says" in spoken(own).differs["bool mask"]
    assert "bool mask" in spoken(silent).wrong


@pytest.mark.parametrize("bottom", [True, False])
def test_the_corner(bottom: bool) -> None:
    def causal(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        """Causality is aligned to the bottom right."""
        rows, keys = q.shape[2], k.shape[2]
        later = torch.ones(rows, keys).triu(1 + (keys - rows if bottom else 0)).bool()
        return attend(q, k, v, later if is_causal else None)

    assert ("causal corner" in spoken(causal).wrong) != bottom


class Padded(nn.Module):
    """pad_mask (batch, length): 1 for real tokens, 0 for padding."""

    seen = True

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Any, pad_mask: Any = None) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        hidden = None if pad_mask is None else (pad_mask != 0)[:, None] ^ self.seen
        return self.out(attend(q, k, v, hidden))


class TurnedRound(Padded):
    """pad_mask (batch, length): 1 for real tokens, 0 for padding."""

    seen = False


def test_a_module() -> None:
    assert not make_target("Padded", Padded).wrong
    assert "pad_mask" in make_target("TurnedRound", TurnedRound).wrong
