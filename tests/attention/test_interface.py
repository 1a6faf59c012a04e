"""Functions with the signature of Hugging Face's attention interface: what they return is held to it, and dropout is that of a module in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional as F

from properties.engine.core.target import Target
from properties.engine.search.probe import make_target


def spoken(function: Callable[..., Any]) -> Target:
    target = make_target(function.__name__, function)
    return target.kind.handshake(target, "cpu")


def eager(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """As its models have it."""
    key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    logits = query @ key.mT * scaling
    if attention_mask is not None:
        logits = logits + attention_mask[..., : key.shape[2]]
    weights = F.dropout(logits.softmax(-1), dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def heads_first(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    out, weights = eager(module, query, key, value, attention_mask, scaling, dropout)
    return out.transpose(1, 2), weights


def weights_turned(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    out, weights = eager(module, query, key, value, attention_mask, scaling, dropout)
    return out, weights.mT


def joined(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Heads and features in one axis, as its modules join them anyway."""
    return eager(module, query, key, value, attention_mask, scaling, dropout)[0].flatten(2), None


def weights_asked_for(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float, output_attentions: bool = False
) -> tuple[Tensor, Tensor]:
    """They come back whether they are asked for or not."""
    return eager(module, query, key, value, attention_mask, scaling)


def test_weights_that_can_be_asked_for_are_no_mistake() -> None:
    target = spoken(weights_asked_for)
    assert "need_weights" in target.parameters and not target.wrong


def test_it_is_understood() -> None:
    target = spoken(eager)
    assert target.learned["result"] == "(batch, length, heads, dim)" and target.learned["beside the output"] == "the weights"
    assert target.learned["dropout"] == "dropout_p" and not target.wrong


def test_axes_that_join_to_the_same_are_no_mistake() -> None:
    assert not spoken(joined).wrong


@pytest.mark.parametrize(
    ("function", "what", "says"),
    [
        (heads_first, "result", "(batch, heads, length, dim), expected (batch, length, heads, dim), as the interface"),
        (weights_turned, "the weights that come back", "other than (batch, heads, queries, keys)"),
    ],
)
def test_what_is_returned_otherwise_is_wrong(function: Any, what: str, says: str) -> None:
    assert says in spoken(function).wrong[what]
