"""Features: the hand-written attention against the oracle's own words, and the mutants of features told apart."""

from __future__ import annotations

from typing import Any

import permissive
import pytest
import torch

from impls.mutants import forget, load_all
from impls.mutants.attention.feature_core import attention as core
from impls.torch_features import attention

MUTANTS = {name: m for name, m in load_all()[0].items() if name.startswith("features.")}


def tensors(queries: int = 6, keys: int = 6) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 4, queries, 3), (2, 2, keys, 3), (2, 2, keys, 3))
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)  # type: ignore[return-value]


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0], dtype=torch.float64)
SINKS = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
MASK = torch.tensor([0.0, 1.5, -torch.inf, -0.5, 0.25, 0.0], dtype=torch.float64)
CALLS: dict[str, dict[str, Any]] = {
    "window": {"window_size": (2, 1)},
    "a window of one": {"window_size": (0, 0)},
    "left": {"window_size": (3, -1), "is_causal": True},
    "right": {"window_size": (-1, 2)},
    "wide": {"window_size": (20, 20), "is_causal": True},
    "wide on both sides": {"window_size": (20, 20)},
    "window and mask": {"window_size": (2, 2), "attn_mask": MASK},
    "cap": {"softcap": 0.5, "scale": 4.0},
    "cap, mask": {"softcap": 2.0, "scale": 4.0, "attn_mask": MASK},
    "slopes": {"alibi_slopes": SLOPES},
    "sinks": {"sinks": SINKS},
    "far sinks": {"sinks": torch.full((4,), -1e4, dtype=torch.float64)},
    "lengths": {"kv_lengths": torch.tensor([3, 5])},
    "no length": {"kv_lengths": torch.tensor([0, 5])},
    "lse": {"return_lse": True, "scale": 3.0},
    "lse of nothing": {"return_lse": True, "kv_lengths": torch.tensor([0, 6])},
    "dropout": {"dropout_p": 0.75},
    "no dropout": {"dropout_p": 0.0},
    "after dropout": {},
    "dropout again": {"dropout_p": 0.75},
    "dropout of many": {"dropout_p": 0.5},
}


def answer(function: Any, call: str) -> list[Any]:
    torch.manual_seed(0)
    out = function(*tensors(keys=40 if call == "dropout of many" else 6), enable_gqa=True, **CALLS[call])
    return list(out) if isinstance(out, tuple) else [out]


@pytest.mark.parametrize("function", [attention, core], ids=["by hand", "the mutants' core"])
@pytest.mark.parametrize("call", [call for call in CALLS if "dropout_p" not in CALLS[call]])
def test_the_hand_written_one_is_exact(function: Any, call: str) -> None:
    """Every answer is that of the oracle, to a few units in the last place of float64."""
    for mine, exact in zip(answer(function, call), answer(permissive.attention, call), strict=True):
        difference = torch.where(mine == exact, 0.0, mine - exact).abs()
        assert difference.max() < 64 * torch.finfo(torch.float64).eps


def test_no_two_mutants_behave_alike() -> None:
    """And each differs from the right answer."""
    seen: dict[bytes, str] = {}
    for name, function in {"right": core, **{name: m.function for name, m in MUTANTS.items()}}.items():
        forget()
        bits = b"".join(x.numpy().tobytes() for call in CALLS for x in answer(function, call))
        assert bits not in seen, f"{name} behaves like {seen[bits]}"
        seen[bits] = name
