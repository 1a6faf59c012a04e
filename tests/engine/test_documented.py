"""What documentation says of a mask, and of a corner, is read where it can be read in one way alone."""

from __future__ import annotations

import functools

import pytest

from properties.engine.contained.documentation import documentation
from properties.engine.core.documented import (
    BATCH,
    HIDDEN,
    SEEN,
    TOKENS,
    added,
    causal,
    corner,
    first_axis,
    narrow,
    one_more,
    open_to_all,
    polarity,
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a 1 in the mask marks a position that has to be HIDDEN, 0 one that stays.", HIDDEN),
        ("mask: (B, L), 1 for tokens and 0 for padding", SEEN),
        ("mask - (b, n) bool, True for real tokens", SEEN),
        ("mask: bool, broadcastable to (N, 1, L, S); True = this key is not looked at", HIDDEN),
        ("mask (batch, length), nonzero/True = ignore", HIDDEN),
        ("1 = may attend.", SEEN),
        ("positions where mask is True are ignored", HIDDEN),
        ("True marks positions that are not masked", SEEN),
        ("Mask out positions where mask == 0", SEEN),
        ("mask: True if the token should be masked, False otherwise", HIDDEN),
        ("mask (torch.Tensor): entries of 0 are not attended to", SEEN),
        ("positions with True are not allowed to attend while False values will be unchanged.", HIDDEN),
        ("mask: Boolean mask where `False` marks positions we must not look at", SEEN),
        ("mask: 1.0 for positions we can attend, 0.0 for masked", SEEN),
        ("mask: True for the positions", ""),
        ("Rows that see no key are 0 under a mask of truth, and NaN under one that is added.", ""),
        ("Hidden where mask is 1", HIDDEN),
        ("what is hidden: True means hidden", HIDDEN),
        ("x: (B, T, C) with T > 1; mask: optional", ""),
        ("True is hidden in one place. In another True is visible.", ""),
        ("mask: which elements within key to ignore (True values)", ""),
    ],
)
def test_polarity(text: str, said: str) -> None:
    assert polarity(text, "mask", ["mask"]) == said


def test_of_several_masks_each_has_its_own_lines() -> None:
    text = """Attention.

    key_padding_mask: (B, S), True at padding
    attn_mask: (L, S), True = visible
    """
    names = ["attn_mask", "key_padding_mask"]
    assert [polarity(text, name, names) for name in names] == [SEEN, HIDDEN]
    assert polarity("True = visible", "attn_mask", names) == ""  # of which of them?


def test_corner() -> None:
    assert corner("causal is aligned to the bottom right corner of (L, S)") == "bottom-right"
    assert corner("the queries are taken to be the *last* L positions") == "bottom-right"
    assert corner("causal from the top-left corner") == "top-left"
    assert corner("top-left where L = S, else bottom-right") == ""


def test_what_is_said_of_others_is_not_read() -> None:
    assert corner("Causal as PyTorch's, unlike flash-attention, whose mask is aligned to the bottom right corner.") == ""
    assert polarity("mask: (B, S). Unlike PyTorch, where True = ignored, it is added.", "mask", ["mask"]) == ""


def test_comments_stand_behind_the_parameter_of_their_line() -> None:
    """What comes after the first statement may be about anything."""

    def attention(
        q: object,
        mask: object = None,  # True = hidden
    ) -> object:
        """Of one head."""
        # of both
        turned = mask  # True = seen
        # True = seen
        return turned

    assert documentation(attention).splitlines() == ["Of one head.", "mask: True = hidden", "of both"]


def test_what_is_decorated_is_read_itself() -> None:
    @functools.lru_cache
    def attention(mask: object = None) -> None:
        """True = hidden"""

    assert documentation(attention) == "True = hidden"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Causal; every token sees itself and the ones before it.", True),
        ("Many query heads, one head of keys; causal, with an optional (key, value) cache.", True),
        ("Causal attention with rotary positions, weights kept per head.", True),
        ("Differential attention (Ye et al. 2024): the difference of two softmaxes, causal.", True),
        ("Performs causal multi-headed self attention.\n\nIf bidirectional is set, not.", True),
        ("Packed non-causal attention with one sequence per image.", False),
        ("Attention that is causal if asked.", False),
        ("Where there is a mask, a causal kernel is asked.", False),
        ("Attention with a causal mask.", False),
        ("Not causal.", False),
        ("Attention. Causal attention is elsewhere.", False),
        ("", False),
    ],
)
def test_causal(text: str, said: bool) -> None:
    assert causal(text) == said


def test_open_to_all() -> None:
    for text in ("Bidirectional self-attention.", "A block. It is not causal.", "Non-causal attention over patches"):
        assert open_to_all(text)
    for text in (
        "Not bidirectional.",
        "Causal or bidirectional attention",
        "If bidirectional is set, tokens see all.",
        "Causal attention, unlike the bidirectional one",
    ):
        assert not open_to_all(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("for sequences of shape (batch, tokens, channels)", BATCH),
        ("x: (B, T, C)", BATCH),
        ("[seq_len x batch x dim]", TOKENS),
        ("(L, N, E), or (N, L, E) where the batch is first", ""),
        ("(batch, heads, length, dim)", ""),
        ("", ""),
    ],
)
def test_the_first_axis(text: str, said: str) -> None:
    assert first_axis(text) == said


def test_what_is_added() -> None:
    both = "attn_mask: (L, S), added to the scores\nkey_padding_mask: (B, S), True at padding"
    names = ["attn_mask", "key_padding_mask"]
    assert added(both, "attn_mask", names) and not added(both, "key_padding_mask", names)
    assert added("an additive mask", "mask", ["mask"]) and not added("a bool mask, or one that is added to the scores", "mask", ["mask"])
    assert not added("mask: never added to anything", "mask", ["mask"]) and not added("", "mask", ["mask"])


def test_one_more() -> None:
    for text in (
        "Attention with softmax1 (Miller 2023).",
        "Softmax-plus-one over keys",
        "a quiet attention",
        "One is added to the denominator.",
    ):
        assert one_more(text)
    for text in (
        "Attention over one more key.",
        "Unlike softmax1, weights sum to one.",
        "This is not a quiet attention.",
        "softmax over 1 axis",
        "softmax10",
    ):
        assert not one_more(text)


def test_narrow() -> None:
    for text in (
        "Computes the attention in bfloat16, whatever the type of x.",
        "q, k and v are cast to torch.float16.",
        "Heads. Everything is done in half precision",
        "Scores are stored in half.",
    ):
        assert narrow(text)
    for text in (
        "Runs in float32, float16 or bfloat16.",
        "The softmax is computed in float32, then cast to bfloat16.",
        "Upcast for the softmax, and converted back to half.",
        "Not computed in bfloat16.",
        "The mask is converted to lower triangular form.",
        "Angles are computed in half of the dimensions.",
        "Computed in bfloat16 if autocast is on.",
        "Unlike others, computes in half precision",
    ):
        assert not narrow(text), text
