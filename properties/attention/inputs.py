"""From a case to the arguments of one call, and from the arguments to the problem that the oracle solves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from ..engine.cases.coordinates import Array, normal, uniform
from ..engine.cases.dtypes import round_to
from ..engine.cases.masks import ahead, in_axes, lengths, make_mask
from ..engine.cases.operands import operands
from ..engine.core.supports import scale_of
from ..exact import oracle
from .case import Case

OF_THE_WIDTH = "1/sqrt(width)"  # a usual mistake: of all heads, where one is meant
SCALES = ("1/sqrt(dim)", "1", "1/dim")  # what the logits may be multiplied by where a call says nothing


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of one call, as carriers (``dtypes``). A mask is bool (True = attend) or float64 (added)."""

    q: Array  # (B, H, L, D)
    k: Array  # (B, Hkv, S, D)
    v: Array  # (B, Hkv, S, Dv)
    mask: Array | None = None  # broadcasts to (B, H, L, S)
    is_causal: bool = False
    scale: float | None = None
    dtype: str = "float64"
    device: str = "cpu"
    layout: str = "contiguous"
    explicit: bool = False  # pass every parameter, also with its default value
    window: tuple[int | None, int | None] | None = None  # keys visible before and after the diagonal; None: all
    softcap: float | None = None
    slopes: Array | None = None  # (H,) of ALiBi
    sinks: Array | None = None  # (H,) logits of a key without a value
    lengths: Array | None = None  # (B,) int: how many of the keys are in use
    return_lse: bool = False
    need_weights: bool = False
    dropout: float = 0.0  # probability
    chance: int = 0  # seed of what is dropped, where the framework has one
    default_scale: str = SCALES[0]  # of SCALES: what a target does where the call gives no scale

    def but(self, **changes: object) -> Inputs:
        """The same call with some arguments changed; carriers are rounded to the type again."""
        for name, value in changes.items():
            if name in ("q", "k", "v") or (name == "mask" and isinstance(value, np.ndarray) and value.dtype != bool):
                changes[name] = round_to(self.dtype, np.asarray(value, dtype=np.float64))
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def take(self, axis: str, index: Array) -> Inputs:
        """The same call on some batch elements (B), key/value heads (H), queries (L) or keys (S), in the order given."""
        at = {"B": 0, "H": 1, "L": 2, "S": 2}[axis]
        q, k, v = self.q, self.k, self.v
        if axis != "S":
            heads = (index[:, None] * self.group + np.arange(self.group)).reshape(-1)
            q = np.take(q, heads if axis == "H" else index, axis=at)
        if axis != "L":
            k, v = np.take(k, index, axis=at), np.take(v, index, axis=at)
        mask = self.mask
        from_end = {"B": 4, "H": 3, "L": 2, "S": 1}[axis]
        if mask is not None and mask.ndim >= from_end and mask.shape[-from_end] > 1:
            mask = np.take(mask, heads if axis == "H" else index, axis=-from_end)
        slopes, sinks, lengths = self.slopes, self.sinks, self.lengths
        if axis == "H":
            slopes, sinks = (None if x is None else x[heads] for x in (slopes, sinks))
        if axis == "B" and lengths is not None:
            lengths = lengths[index]
        return dataclasses.replace(self, q=q, k=k, v=v, mask=mask, slopes=slopes, sinks=sinks, lengths=lengths)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys): the shape of the logits."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.q.shape[1] // self.k.shape[1] if self.k.shape[1] else 1

    @property
    def effective_scale(self) -> float:
        """The factor of the logits: the one given, or the target's own, which is usually 1/sqrt(D)."""
        if self.scale is not None:
            return self.scale
        return scale_of(self.default_scale, self.q.shape[-1], self.q.shape[1])

    def said(self, axes: tuple[str, ...]) -> Inputs:
        """The same call, its mask in axes along which the target takes one (``in_axes``)."""
        mask = None if self.mask is None else in_axes(self.mask, self.shape, axes)
        return self if mask is self.mask else dataclasses.replace(self, mask=mask)

    def visible(self, causal: str = "top-left") -> Array:
        """(B, H, L, S) bool: key j may be attended from query i, under the mask and the causal frontier."""
        visible = np.ones(self.shape, dtype=bool)
        if self.mask is not None:
            visible &= self.mask if self.mask.dtype == bool else self.mask != -np.inf
        ahead = self.ahead(causal)
        if self.is_causal:
            visible &= ahead <= 0
        if self.lengths is not None:
            visible &= np.arange(self.shape[3]) < self.lengths[:, None, None, None]
        if self.window is not None:
            left, right = self.window
            visible &= (ahead >= -left if left is not None else True) & (ahead <= right if right is not None else True)
        return visible

    def hides_all(self, causal: str = "top-left") -> bool:
        """Whether a row sees no key; of no mask that does not fit, which has to be refused."""
        try:
            return not self.visible(causal).any(-1).all()
        except ValueError:
            return False

    def ahead(self, causal: str = "top-left") -> Array:
        """(L, S) or (B, 1, L, S): how far key j lies after the diagonal of row i, where a causal row ends.

        The diagonal begins at the first key (top-left), or ends at the last key in use (bottom-right).
        """
        queries, keys = self.shape[2:]
        in_use = keys if self.lengths is None else self.lengths[:, None, None, None]
        return ahead(queries, keys, causal, in_use)

    def bias(self) -> Array | None:
        """The finite part of an additive mask, 0 where it is -inf; None for a bool mask or none."""
        if self.mask is None or self.mask.dtype == bool:
            return None
        return np.where(self.mask == -np.inf, 0.0, self.mask)

    def alibi(self, causal: str = "top-left") -> Array | None:
        """−slope · |distance of key j from the diagonal of row i| (…, H, L, S) (Press, Smith & Lewis 2022)."""
        if self.slopes is None:
            return None
        bias: Array = -self.slopes[:, None, None] * np.abs(self.ahead(causal))
        return bias


def problem_of(inputs: Inputs, causal: str = "top-left", empty_rows: str = "zero") -> oracle.Problem:
    """What the oracle is asked of a call, in a dialect."""
    bias, alibi = inputs.bias(), inputs.alibi(causal)
    problem = oracle.Problem(
        q=inputs.q,
        k=inputs.k,
        v=inputs.v,
        scale=inputs.effective_scale,
        visible=inputs.visible(causal),
        bias=bias if alibi is None else alibi if bias is None else bias + alibi,
        bias_size=None if inputs.slopes is None else inputs.slopes[:, None, None] * max(inputs.shape[2:]),
        empty_rows=empty_rows,
        softcap=inputs.softcap,
    )
    return problem if inputs.sinks is None else oracle.with_sinks(problem, inputs.sinks)


# ---------------------------------------------------------------- tensors


def make_inputs(case: Case) -> Inputs:
    """The arguments of the call that the case stands for."""
    shared = case.layout == "expanded"  # stride 0 along the batch: one key and one value for all of it
    q_shape = (case.batch, case.heads, case.queries, case.dim)
    k_shape = (case.batch, case.kv_heads, case.keys, case.dim)
    v_shape = (case.batch, case.kv_heads, case.keys, case.width)
    q, k, v = operands(case, q_shape, k_shape, v_shape, shared)
    tensors = {"q": q, "k": k, "v": v}
    for name, index, value in case.edits:
        if tensors[name].size:
            tensors[name] = tensors[name].copy()
            tensors[name].reshape(-1)[index % tensors[name].size] = round_to(case.dtype, np.array(value, dtype=float))
    return Inputs(
        q=tensors["q"],
        k=tensors["k"],
        v=tensors["v"],
        mask=make_mask(case, (*q_shape[:3], case.keys)),
        is_causal=case.is_causal,
        scale=case.scale,
        dtype=case.dtype,
        device=case.device,
        layout=case.layout,
        explicit=case.explicit,
        window=None if case.window_left is None is case.window_right else (case.window_left, case.window_right),
        softcap=case.softcap,
        slopes=round_to(case.dtype, 2.0 ** (-8 * uniform(case.seed, "slopes", (case.heads,)))) if case.alibi else None,
        sinks=round_to(case.dtype, 2 * normal(case.seed, "sinks", (case.heads,))) if case.sinks else None,
        # A sequence may be empty only beside others: alone, zeros would be right.
        lengths=lengths(case, (case.batch, 1, 1, case.keys), int(case.batch == 1))[:, 0, 0, 0] if case.lengths else None,
    )
