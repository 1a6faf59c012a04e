"""What there is to see of a target, or of a word such as ``masks``: matrices with names on both axes, or curves.

The weights of a black box are read through its values: V = I, some columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...attention.case import Case
from ...attention.inputs import Inputs, make_inputs
from ...attention.trial import Trial
from ...linear.call import call as linear_call
from ...linear.call import smoke_inputs
from ...position import exact as positions
from ...position.call import answer
from ..cases.coordinates import Array, normal
from ..cases.masks import MASKS
from ..core.target import CannotRun, Target

AT_ONCE = 128  # columns of the identity in one call
BASE = 10000.0


@dataclass(frozen=True, eq=False)
class Scene:
    """Matrices of one shape with a name each, or curves: (name, (2, points))."""

    title: str
    panels: Sequence[tuple[str, Array]]
    rows: Sequence[Any]
    columns: Sequence[Any]
    axes: tuple[str, str]  # what a row is, and a column
    curves: bool = False


@dataclass(frozen=True)
class Wanted:
    """What somebody wants to see."""

    text: str | None = None
    tokens: int = 8
    heads: int = 2
    dim: int = 16
    causal: bool = False
    mask: str | None = None
    window: tuple[int | None, int | None] | None = None
    seed: int = 0

    @property
    def words(self) -> list[str]:
        """The tokens of the text, split at blanks; none without a text."""
        return (self.text or "").split()

    @property
    def count(self) -> int:
        """How many tokens there are."""
        return len(self.words) or self.tokens


# ---------------------------------------------------------------- of a target


def of_target(target: Target, wanted: Wanted) -> Scene:
    """What there is to see of a target. Raises CannotRun for a contract that has no picture, or an option that the target does not take."""
    draws: Mapping[str, Callable[[Target, Wanted], Scene]] = {
        "linear": _linear,
        "sinusoidal": _sinusoidal,
        "rotary": _rotary,
        "slopes": _slopes,
        "buckets": _buckets,
    }
    if target.contract in draws:
        return draws[target.contract](target, wanted)
    view = target.kind.view(target, "attention")
    if view.contract != "attention":
        raise CannotRun(f"the weights of {target.name} cannot be read through its values: it is {target.kind.call.partition('(')[0]}")
    return _attention(view, wanted)


def _attention(target: Target, wanted: Wanted) -> Scene:
    for asked, name in ((wanted.causal, "is_causal"), (wanted.mask, "attn_mask"), (wanted.window, "window_size")):
        if asked and name not in target.parameters:
            raise CannotRun(f"{target.name} takes no {name}")
    trial = Trial(target, case_of(target, wanted))
    inputs = trial.inputs
    if wanted.text is not None:
        q, k = embedded(wanted.words, inputs.q.shape[1], inputs.q.shape[3], wanted.seed)
        inputs = inputs.but(q=q, k=k)
    read = weights(trial, inputs)
    names = wanted.words or range(wanted.count)
    panels = [(f"head {head}", read[0, head]) for head in range(read.shape[1])]
    return Scene(f"{target.name}: attention weights{_said(wanted)}", panels, names, names, ("query", "key"))


def case_of(target: Target, wanted: Wanted) -> Case:
    """The case of the call that is wanted, in the forms of masks that the target takes."""
    facts, count = target.supports, wanted.count
    dims = facts.head_dims or (wanted.dim,)
    axes = "LS" if "LS" in facts.mask_axes else max(facts.mask_axes, key=len)
    return Case(
        kv_heads=wanted.heads,
        queries=count,
        keys=count,
        dim=dims[0],
        dtype=next(dtype for dtype in ("float64", "float32", *target.dtypes) if dtype in target.dtypes),
        is_causal=wanted.causal,
        mask=wanted.mask or "none",
        mask_kind="bool" if "bool" in facts.mask_kinds else facts.mask_kinds[0],
        mask_axes=axes,
        mask_rank=max(2, facts.mask_rank),
        window_left=wanted.window[0] if wanted.window else None,
        window_right=wanted.window[1] if wanted.window else None,
        seed=wanted.seed,
    )


def weights(trial: Trial, inputs: Inputs) -> Array:
    """(B, H, L, S): the answers for the columns of the identity as values, some at a time. Raises Raised."""
    batch, kv_heads, keys, width = inputs.v.shape
    at_once = min(keys, AT_ONCE) if trial.supports.value_dim else width
    parts = []
    for at in range(0, keys, at_once):
        columns = (np.arange(keys)[:, None] == at + np.arange(at_once)).astype(np.float64)
        parts.append(trial.run(inputs.but(v=np.broadcast_to(columns, (batch, kv_heads, keys, at_once)))).out)
    return np.concatenate(parts, axis=-1)[..., :keys]


def embedded(words: Sequence[str], heads: int, dim: int, seed: int) -> tuple[Array, Array]:
    """Queries and keys (1, heads, tokens, dim) of a text: a random vector for every word, projected at random for each head."""
    x = np.array([normal(seed, f"token {word}", (2 * dim,)) for word in words]).reshape(len(words), 2 * dim)
    q, k = (np.stack([x @ normal(seed, f"{name}{head}", (2 * dim, dim)) for head in range(heads)]) for name in ("w_q", "w_k"))
    return q[None] / (2 * dim) ** 0.5, k[None] / (2 * dim) ** 0.5


def _said(wanted: Wanted) -> str:
    window = f", window {_side(wanted.window[0])}, {_side(wanted.window[1])}" if wanted.window else ""
    return ", causal" * wanted.causal + (f", mask {wanted.mask}" if wanted.mask else "") + window


def _linear(target: Target, wanted: Wanted) -> Scene:
    x = smoke_inputs(target, "float64" if "float64" in target.dtypes else target.dtypes[0], "cpu")
    heads, dim, count = wanted.heads, x.q.shape[3], wanted.count
    q, k = embedded(wanted.words or list(map(str, range(count))), heads, dim, wanted.seed)
    inputs = x.but(q=q, k=k, v=np.broadcast_to(np.eye(count), (1, heads, count, count)), is_causal=wanted.causal)
    out, *_ = linear_call(target, inputs, target.buffers())
    names = wanted.words or range(count)
    return Scene(f"{target.name}: weights{_said(wanted)}", [(f"head {h}", out[0, h]) for h in range(heads)], names, names, ("query", "key"))


def _sinusoidal(target: Target, wanted: Wanted) -> Scene:
    out, *_ = answer(target, wanted.count, wanted.dim, **_typed(target))
    return Scene(f"{target.name}: a row a position", [("", out)], range(wanted.count), range(wanted.dim), ("position", "feature"))


def _typed(target: Target) -> dict[str, Any]:
    """The type of the answer, where the target is told."""
    return {"dtype": target.framework.named_dtype(target.dtypes[0])} if "dtype" in target.parameters else {}


def _rotary(target: Target, wanted: Wanted) -> Scene:
    """The angle by which the pair i is turned at each position: that of the image of (1, 0)."""
    dim, fw = wanted.dim + wanted.dim % 2, target.framework
    first, second = positions.split(np.arange(dim), target.supports.pairing)
    x = np.zeros((1, 1, wanted.count, dim))
    x[..., first] = 1
    given = fw.assign(fw.full(x.shape, 0.0, target.dtypes[0], "cpu"), x)
    out, *_ = answer(target, given, fw.integers(np.arange(wanted.count, dtype=np.float64), "cpu"))
    angle = np.arctan2(out[0, 0][:, second], out[0, 0][:, first])
    return Scene(f"{target.name}: angles, −π to π", [("", angle)], range(wanted.count), range(dim // 2), ("position", "pair"))


def _slopes(target: Target, wanted: Wanted) -> Scene:
    out, *_ = answer(target, wanted.heads, **_typed(target))
    distance = np.abs(np.arange(wanted.count) - np.arange(wanted.count)[:, None])
    panels = [(f"head {head}, slope {slope:.3g}", -slope * distance) for head, slope in enumerate(out)]
    return Scene(f"{target.name}: what is added to the logits", panels, range(wanted.count), range(wanted.count), ("query", "key"))


def _buckets(target: Target, wanted: Wanted) -> Scene:
    relative = np.arange(wanted.count) - np.arange(wanted.count)[:, None]
    out, *_ = answer(target, target.framework.integers(relative, "cpu"))
    return Scene(f"{target.name}: buckets", [("", out.astype(float))], range(wanted.count), range(wanted.count), ("query", "key"))


# ---------------------------------------------------------------- of a word


def masks(wanted: Wanted) -> Scene:
    """Every family of masks, and the causal corner at the first and at the last key: 1 is seen."""
    n = wanted.count
    panels = [(name, _visible(n, n, mask=name, seed=wanted.seed)) for name in MASKS]
    panels += [(f"causal, {corner}", _visible(n, n + 2, corner, is_causal=True)[:, :n]) for corner in ("top-left", "bottom-right")]
    return Scene("masks: 1 is seen", panels, range(n), range(n), ("query", "key"))


def windows(wanted: Wanted) -> Scene:
    """Some windows (left, right), about both diagonals."""
    n = wanted.count
    sides: tuple[tuple[int | None, int | None], ...] = (wanted.window,) if wanted.window else ((2, 0), (0, 2), (1, 1), (None, 0))
    panels = [
        (f"{_side(left)}, {_side(right)}, {corner}", _visible(n, n + 2, corner, window_left=left, window_right=right))
        for corner in ("top-left", "bottom-right")
        for left, right in sides
    ]
    return Scene("windows (left, right): 1 is seen", panels, range(n), range(n + 2), ("query", "key"))


def _side(side: int | None) -> str:
    return "all" if side is None else str(side)


def _visible(queries: int, keys: int, corner: str = "top-left", **fields: Any) -> Array:
    return make_inputs(Case(queries=queries, keys=keys, **fields)).visible(corner)[0, 0].astype(float)


def sinusoids(wanted: Wanted) -> Scene:
    """PE(p, 2i) = sin(p w_i), PE(p, 2i+1) = cos(p w_i)."""
    angle = _angles(wanted)
    table = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(wanted.count, -1)[:, : wanted.dim]
    return Scene("sinusoidal positions", [("", table)], range(wanted.count), range(wanted.dim), ("position", "feature"))


def rotary(wanted: Wanted) -> Scene:
    """p w_i: the angle by which the pair i is turned at position p."""
    angle = _angles(wanted)
    return Scene("rotary angles, in radians", [("", angle)], range(wanted.count), range(angle.shape[1]), ("position", "pair"))


def _angles(wanted: Wanted) -> Array:
    frequency = positions.frequencies((wanted.dim + 1) // 2, wanted.dim, BASE).astype(np.float64)
    return np.arange(wanted.count)[:, None] * frequency


def scaling(wanted: Wanted) -> Scene:
    """The variance of q·k, of q·k/√dim and of q·k/dim for normal q and k, over the dim."""
    dims = [2**power for power in range(11)]
    product = [(normal(wanted.seed, "q", (2000, dim)) * normal(wanted.seed, "k", (2000, dim))).sum(axis=1) for dim in dims]
    scales = {"q·k": 0.0, "q·k / √dim": 0.5, "q·k / dim": 1.0}
    panels = [
        (name, np.array([dims, [(x * dim**-power).var() for x, dim in zip(product, dims, strict=True)]])) for name, power in scales.items()
    ]
    return Scene("variance of the logits", panels, (), (), ("variance", "dim"), curves=True)


WORDS: Mapping[str, Callable[[Wanted], Scene]] = {
    "masks": masks,
    "windows": windows,
    "sinusoids": sinusoids,
    "rotary": rotary,
    "scaling": scaling,
}
