"""From a case to the arguments of one call, and from the arguments to the problem that the oracle solves."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .case import PROGRAM, TENSORS, Case
from .coordinates import Array, bits, normal, uniform
from .dtypes import FLOAT_TYPES, round_to
from .frameworks import LAYOUTS
from .grad_output import GRAD_LAYOUTS, GRADS
from .packing import PACKINGS
from .regimes import REGIMES

AXES = "BHLS"
LEADING_TILES = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)


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
    dropout: float = 0.0  # probability
    chance: int = 0  # seed of what is dropped, where the framework has one

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
        """The factor of the logits: the one given, or 1/sqrt(D)."""
        if self.scale is not None:
            return self.scale
        return self.q.shape[-1] ** -0.5 if self.q.shape[-1] else 1.0

    def said(self, axes: tuple[str, ...]) -> Inputs:
        """The same call, its mask in axes along which the target takes one (``in_axes``)."""
        mask = None if self.mask is None else in_axes(self.mask, self.shape, axes)
        return self if mask is self.mask else dataclasses.replace(self, mask=mask)

    def visible(self, causal: str = "top-left") -> Array:
        """(B, H, L, S) bool: key j may be attended from query i, under the mask and the causal frontier."""
        seen = np.ones(self.shape, dtype=bool)
        if self.mask is not None:
            seen &= self.mask if self.mask.dtype == bool else self.mask != -np.inf
        ahead = self.ahead(causal)
        if self.is_causal:
            seen &= ahead <= 0
        if self.lengths is not None:
            seen &= np.arange(self.shape[3]) < self.lengths[:, None, None, None]
        if self.window is not None:
            left, right = self.window
            seen &= (ahead >= -left if left is not None else True) & (ahead <= right if right is not None else True)
        return seen

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


def frontier(queries: int, keys: int, causal: str = "top-left") -> Array:
    """(L, S) bool: j <= i, counted from the first row (top-left) or so that the last row sees all (bottom-right)."""
    return ahead(queries, keys, causal, keys) <= 0


def ahead(queries: int, keys: int, causal: str, in_use: int | Array) -> Array:
    """j minus the last key that a causal row i sees: i (top-left), or i + keys in use − queries (bottom-right)."""
    offset = 0 if causal == "top-left" else in_use - queries
    return np.arange(keys) - (np.arange(queries)[:, None] + offset)


# ---------------------------------------------------------------- masks

Pattern = Callable[[Case, tuple[int, ...]], Array]


def _coordinate(case: Case, shape: tuple[int, ...], axis: int) -> Array:
    return np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(4)])


def _random(case: Case, shape: tuple[int, ...]) -> Array:
    return uniform(case.seed, "mask", shape) < case.mask_density


def _everything(case: Case, shape: tuple[int, ...]) -> Array:
    return np.ones(shape, dtype=bool)


def _nothing(case: Case, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape, dtype=bool)


def _lengths(case: Case, shape: tuple[int, ...], least: int) -> Array:
    keys = max(shape[3], 1)
    draw = bits(case.seed, "length", (*shape[:3], 1)) >> np.uint64(33)
    return least + (draw % np.uint64(keys + 1 - least)).astype(np.int64)


def _padding(case: Case, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) < _lengths(case, shape, 1)


def _left_padding(case: Case, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) >= shape[3] - _lengths(case, shape, 1)


def _band(case: Case, shape: tuple[int, ...]) -> Array:
    distance = _coordinate(case, shape, 2) - _coordinate(case, shape, 3)
    return (distance >= 0) & (distance <= 1 + case.seed % 3)


def _triangle(case: Case, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) <= _coordinate(case, shape, 2)


def _leading_tile(case: Case, shape: tuple[int, ...]) -> Array:
    tile = next((size for size in LEADING_TILES if size < shape[3]), 0)
    return (_coordinate(case, shape, 3) >= tile) & np.ones(shape, dtype=bool)


def _documents(case: Case, shape: tuple[int, ...]) -> Array:
    cut = max(1, shape[3] // 2)
    return (_coordinate(case, shape, 2) < cut) == (_coordinate(case, shape, 3) < cut)


def _one_key(case: Case, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) == _lengths(case, shape, 1) - 1


def _one_hole(case: Case, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) != _lengths(case, shape, 1) - 1


def _empty_rows(case: Case, shape: tuple[int, ...]) -> Array:
    empty = uniform(case.seed, "empty", (*shape[:3], 1)) < 0.5
    return (uniform(case.seed, "mask", shape) < 0.7) & ~empty


MASKS: dict[str, Pattern] = {
    "random": _random,
    "padding": _padding,
    "left_padding": _left_padding,
    "triangle": _triangle,
    "band": _band,
    "documents": _documents,
    "one_key": _one_key,
    "one_hole": _one_hole,
    "leading_tile": _leading_tile,
    "everything": _everything,
    "empty_rows": _empty_rows,
    "nothing": _nothing,
}
MASK_KINDS = ("bool", "minus_infinity", "bias", "bias_and_minus_infinity", "lowest")
MASK_AXES = ("LS", "S", "BLS", "HLS", "BHLS", "BS", "HS", "BHS", "L", "BL", "BH", "")


def make_mask(case: Case, shape: tuple[int, int, int, int]) -> Array | None:
    """The mask of the case for logits of ``shape`` (B, H, L, S), with the declared axes, kind and rank."""
    if case.mask == "none":
        return None
    sizes = tuple(size if axis in case.mask_axes else 1 for axis, size in zip(AXES, shape, strict=True))
    seen = np.broadcast_to(MASKS[case.mask](case, sizes), sizes)
    least = next((4 - at for at, axis in enumerate(AXES) if axis in case.mask_axes), 0)
    mask = _say(case, seen)
    return mask.reshape(sizes[4 - max(least, case.mask_rank) :])


def in_axes(mask: Array, shape: tuple[int, ...], allowed: tuple[str, ...]) -> Array:
    """The mask in the fewest of the allowed axes that say it: of full size along them, of size 1 or none along all others.

    It stays as it is where it has such a form, fits no logits of this shape, or can be said in none.
    """
    sizes = (1,) * (4 - mask.ndim) + mask.shape
    least = {axes: next((4 - at for at, axis in enumerate(AXES) if axis in axes), 0) for axes in allowed}

    def full(axes: str) -> tuple[int, ...]:
        return tuple(size if axis in axes else 1 for axis, size in zip(AXES, shape, strict=True))

    legal = mask.ndim <= 4 and all(one in (1, size) for one, size in zip(sizes, shape, strict=True))
    if not legal or any(sizes == full(axes) and mask.ndim >= least[axes] for axes in allowed):
        return mask
    whole = mask.reshape(sizes)
    varies = {axis for at, axis in enumerate(AXES) if sizes[at] > 1}
    needs = {axis for at, axis in enumerate(AXES) if sizes[at] > 1 and (whole != whole.take([0], axis=at)).any()}
    may = [axes for wanted in (varies, needs) for axes in sorted(allowed, key=len) if wanted <= set(axes)]
    if not may:
        return mask
    for at, axis in enumerate(AXES):
        if axis not in may[0] and sizes[at] != 1:
            whole = whole.take([0], axis=at) if sizes[at] else np.full(full(may[0]), mask.dtype == bool, dtype=mask.dtype)
    return np.broadcast_to(whole, full(may[0])).reshape(full(may[0])[4 - max(least[may[0]], mask.ndim) :])


def other_mask(mask: Array, case: Case) -> Array:
    """A mask of the case's kind that says something else: what is hidden is seen, and the other way round; or another bias."""
    if mask.dtype == bool:
        return ~mask
    if not case.mask_kind.startswith("bias"):
        return np.where(mask < 0, 0.0, _hidden(case))
    slope = np.arange(mask.shape[-1]) if mask.ndim and mask.shape[-1] > 1 else 1.0
    return np.where(mask == -np.inf, 0.0, mask - 3 * slope)


def _hidden(case: Case) -> float:
    """What an additive mask says of a hidden key."""
    return FLOAT_TYPES[case.dtype].max * -1.0 if case.mask_kind == "lowest" else -np.inf


def _say(case: Case, seen: Array) -> Array:
    """The same visibility in the words of the mask's kind."""
    if case.mask_kind == "bool":
        return seen.copy()
    bias = np.zeros(seen.shape)
    if case.mask_kind.startswith("bias"):
        bias = round_to(case.dtype, 2 * normal(case.seed, "bias", seen.shape))
    return bias if case.mask_kind == "bias" else np.where(seen, bias, _hidden(case))


# ---------------------------------------------------------------- tensors


def make_inputs(case: Case) -> Inputs:
    """The arguments of the call that the case stands for."""
    shared = case.layout == "expanded"  # stride 0 along the batch: one key and one value for all of it
    q_shape = (case.batch, case.heads, case.queries, case.dim)
    k_shape = (case.batch, case.kv_heads, case.keys, case.dim)
    v_shape = (case.batch, case.kv_heads, case.keys, case.width)
    q, k, v = (_fill(case, name, shape, shared and name != "q")
               for name, shape in (("q", q_shape), ("k", k_shape), ("v", v_shape)))
    with np.errstate(over="ignore", under="ignore"):
        q, k, v = REGIMES[case.values](q, k, v, case)
        q = q * 2.0**case.magnitude
    if shared:
        k, v = (np.broadcast_to(x[:1], x.shape) for x in (k, v))
    tensors = {"q": round_to(case.dtype, q), "k": round_to(case.dtype, k), "v": round_to(case.dtype, v)}
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
        lengths=_lengths(case, (case.batch, 1, 1, case.keys), int(case.batch == 1))[:, 0, 0, 0] if case.lengths else None,
    )


def _fill(case: Case, name: str, shape: tuple[int, ...], shared: bool) -> Array:
    numbers = normal(case.seed, name, (1, *shape[1:]) if shared else shape)
    return np.broadcast_to(numbers, shape) if shared and shape[0] else numbers[: shape[0]] if shared else numbers


# ---------------------------------------------------------------- cases that a person wrote

_NUMBERS = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "int | None": (int, type(None)), "float": _NUMBERS, "float | None": (*_NUMBERS, type(None)),
    "bool": (bool,), "str": (str,), "tuple[Edit, ...]": (tuple,), "tuple[int, ...]": (tuple,), "tuple[str, ...]": (tuple,),
}  # fmt: skip
_SIZES = {"batch": 0, "kv_heads": 0, "group": 1, "queries": 0, "keys": 0, "dim": 0, "value_dim": 0, "window_left": 0,
          "window_right": 0, "seed": 0, "offset": 0, "rotary_dim": 2, "num_buckets": 4, "max_distance": 2, "spare": 0, "page_size": 1, "hidden": 1}
_CHOICES = {"dtype": tuple(FLOAT_TYPES), "mask": ("none", *MASKS), "mask_kind": MASK_KINDS, "mask_axes": MASK_AXES,
            "mask_rank": (0, 1, 2, 3, 4), "values": tuple(REGIMES), "layout": LAYOUTS,
            "grad": tuple(GRADS), "grad_layout": GRAD_LAYOUTS, "memory_mask": ("none", *MASKS),
             "packing": tuple(PACKINGS), "activation": ("relu", "gelu")}  # fmt: skip


def read_case(text: str) -> Case:
    """The case that ``repr`` printed or a person wrote. Raises ValueError with one sentence if it means nothing."""
    case = Case.parse(text)
    for field in dataclasses.fields(Case):
        name, value = field.name, getattr(case, field.name)
        if not isinstance(value, _TYPES[str(field.type)]):
            raise ValueError(f"the field {name!r} of a case is {field.type}, got {value!r}")
        if value is not None and value < _SIZES.get(name, value):
            raise ValueError(f"the field {name!r} of a case is at least {_SIZES[name]}, got {value!r}")
        if name in _CHOICES and value not in _CHOICES[name]:
            near = difflib.get_close_matches(str(value), map(str, _CHOICES[name]), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it can be {', '.join(map(repr, _CHOICES[name]))}"
            raise ValueError(f"the field {name!r} of a case is {value!r}; {hint}")
    if not all(isinstance(size, int) and size >= 0 for size in case.chunks):
        raise ValueError(f"the field 'chunks' of a case holds whole numbers, for example (4, 1), got {case.chunks!r}")
    if not set(case.program) <= set(PROGRAM):
        raise ValueError(f"the field 'program' of a case holds words among {', '.join(PROGRAM)}, got {case.program!r}")
    for edit in case.edits:
        if len(edit) != 3 or edit[0] not in TENSORS or not isinstance(edit[1], int) or not isinstance(edit[2], _NUMBERS):
            raise ValueError(f"an edit is (tensor, index, value), for example ('v', 0, 1.0), got {edit!r}")
    return case
