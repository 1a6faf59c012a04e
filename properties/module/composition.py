"""The attention that is composed of the projections of a module, in float64, step by step; each step the right one, or a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..engine.cases.coordinates import Array
from .latent import Latent
from .reduction import EXCHANGED, RESHAPED
from .structure import HEADS, ONE_MORE, Held, Norm, Place, Rotation, Slopes, Structure, factor, mixed

HIDDEN = {"minus infinity": -np.inf, "0": 0.0, "−10": -10.0}
EPSILONS = {"float64": float(np.finfo(np.float64).eps)}  # of norms that have that of the type; all narrower types take that of float32
SHORTEST = 1e-12  # length by which ``torch.nn.functional.normalize`` divides
Parts = tuple[Array, Array, Array]  # queries (B, H, L, d), keys and values (B, K, S, d)


@dataclass(frozen=True, eq=False)
class Call:
    """One call, as a composition sees it."""

    held: Held
    x: Array  # (B, L, D)
    memory: Array  # (B, S, D'); x itself, where tokens are their own
    causal: bool = False
    visible: Array | None = None  # (B, 1 or L, S) bool: what a mask lets a row see; None: everything
    dtype: str = "float64"
    added: Array | None = None  # (L, D), to what queries are made of, and keys of the tokens themselves
    beyond: Array | None = None  # (S, D'), to what keys of a memory are made of

    @property
    def itself(self) -> bool:
        """Whether tokens are their own memory."""
        return self.memory is self.x


@dataclass(frozen=True)
class Steps:
    """The steps of an attention; each field is the right one, or a mistake."""

    split: str = "heads"
    merge: str = "heads"
    axis: int = -1
    frontier: int | None = 0  # None: no causality
    mask: str = "keys"
    fill: str = "minus infinity"
    after: bool = False  # what is hidden is hidden after the softmax
    divide: bool = True
    parts: tuple[tuple[str, str], ...] = ()  # (a part, the one whose weights it uses)
    output: bool = True
    image: str = ""  # by which mistake tokens are made an image
    reshaped: bool = False  # heads of a table of biases are parted by a reshape
    added: str = "qk"  # to what positions are added
    transposed: bool = False  # values are weighed as if queries were keys


RIGHT = Steps()
TABLE_RESHAPED = "biases of two places brought to heads by a reshape, without a transpose"
MISTAKES: dict[str, Steps] = {
    "heads split by a reshape, without a transpose": replace(RIGHT, split="reshape"),
    "heads merged by a reshape, without a transpose": replace(RIGHT, merge="reshape"),
    "a softmax over queries": replace(RIGHT, axis=-2),
    "a softmax over heads": replace(RIGHT, axis=1),
    "a softmax over sequences": replace(RIGHT, axis=0),
    "the transposed weights on values": replace(RIGHT, transposed=True),
    "exponentials that are not divided by their sum": replace(RIGHT, divide=False),
    "a causal frontier that is one too far": replace(RIGHT, frontier=1),
    "a causal frontier that is one too near": replace(RIGHT, frontier=-1),
    "no causality": replace(RIGHT, frontier=None),
    "the mask taken the other way round": replace(RIGHT, mask="inverted"),
    "the mask left out": replace(RIGHT, mask="none"),
    "the mask on queries instead of keys": replace(RIGHT, mask="queries"),
    "the mask of the first sequence for all": replace(RIGHT, mask="first"),
    "what is hidden hidden after the softmax": replace(RIGHT, after=True),
    "hidden logits of 0": replace(RIGHT, fill="0"),
    "hidden logits of −10": replace(RIGHT, fill="−10"),
    "keys projected as queries": replace(RIGHT, parts=(("k", "q"),)),
    "values projected as keys": replace(RIGHT, parts=(("v", "k"),)),
    "queries and keys exchanged": replace(RIGHT, parts=(("q", "k"), ("k", "q"))),
    "no output projection": replace(RIGHT, output=False),
    "positions added to queries alone": replace(RIGHT, added="q"),
    "positions added to keys alone": replace(RIGHT, added="k"),
    EXCHANGED: replace(RIGHT, image=EXCHANGED),
    RESHAPED: replace(RIGHT, image=RESHAPED),
    TABLE_RESHAPED: replace(RIGHT, reshaped=True),
}


def compose(s: Structure, call: Call, steps: Steps = RIGHT) -> Array:
    """The answer (B, L, D) to a call, in float64."""
    return attended(s, call, looked(s, call, steps), steps)


# ---------------------------------------------------------------- up to queries, keys and values


def looked(s: Structure, call: Call, steps: Steps = RIGHT) -> Parts:
    """Queries, keys and values as they meet: projected, split into heads, normed, turned."""
    s = s.but(rotation=None) if s.still and not call.itself else s
    if s.latent:
        return _latent(s, s.latent, call, steps)
    weights = s.read(call.held)
    weights = weights | {part: weights[other] for part, other in steps.parts}
    x = normed(s.norms.get("x"), call.x, call)
    memory = x if call.itself else normed(s.norms.get("memory"), call.memory, call)
    if s.reduction:
        memory = normed(s.norms.get("fewer"), s.reduction.reduced(memory, call.held, steps.image), call)
    made = []
    for part, tokens, heads in (("q", x, s.heads), ("k", memory, s.kv_heads), ("v", memory, s.kv_heads)):
        places = call.added if part == "q" or call.itself else call.beyond
        tokens = tokens + places if places is not None and part in (s.added if steps is RIGHT else steps.added) else tokens
        w, b = weights[part]
        y, own = tokens @ w.T + (0.0 if b is None else b), s.norms.get(part)
        over_all = own is not None and own.weight != "" and call.held[own.weight].shape == y.shape[-1:] and heads > 1
        y = _split(normed(own, y, call) if over_all else y, heads, steps)
        early = s.rotation is not None and s.rotation.early
        y = turned(s.rotation, part, y, call) if early else y
        y = y if over_all else normed(own, y, call)
        made.append(y if early else turned(s.rotation, part, y, call))
    return made[0], made[1], made[2]


def _latent(s: Structure, latent: Latent, call: Call, steps: Steps) -> Parts:
    """The same of latent attention: the last features of queries meet a key that all heads share."""
    x = normed(s.norms.get("x"), call.x, call)
    memory = x if call.itself else normed(s.norms.get("memory"), call.memory, call)
    narrow = x if latent.down_q is None else normed(s.norms.get("latent q"), _projected(x, latent.down_q, call), call)
    q = _split(_projected(narrow, s.places["q"], call), s.heads, steps)
    low = _projected(memory, latent.down, call)
    rank = low.shape[-1] - latent.shared
    kv = _split(_projected(normed(s.norms.get("latent"), low[..., :rank], call), latent.up, call), s.heads, steps)
    shared = turned(s.rotation, "k", low[:, None, :, rank:], call)
    k = np.concatenate([kv[..., : latent.alone], np.broadcast_to(shared, (*kv.shape[:3], latent.shared))], -1)
    q = np.concatenate([q[..., : latent.alone], turned(s.rotation, "q", q[..., latent.alone :], call)], -1)
    return q, k, kv[..., latent.alone :]


def _projected(x: Array, place: Place, call: Call) -> Array:
    w, b = place.get(call.held)
    return np.asarray(x @ w.T + (0.0 if b is None else b))


def _split(y: Array, heads: int, steps: Steps) -> Array:
    """(B, L, heads · d) → (B, heads, L, d)"""
    if steps.split == "reshape":
        return y.reshape(y.shape[0], heads, y.shape[1], -1)
    return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def normed(norm: Norm | None, y: Array, call: Call) -> Array:
    """A norm over the last axis; of heads (B, H, L, d) a weight may be that of one head, or of every head another one.

    That of groups (Wu and He 2018) is over the tokens (B, L, D), too.
    """
    if norm is None:
        return y
    if norm.kind == "gain":
        return y * call.held[norm.weight]
    if norm.kind == "length":
        return y / np.maximum(np.sqrt((y * y).sum(-1, keepdims=True)), SHORTEST)
    epsilon = EPSILONS.get(call.dtype, float(np.finfo(np.float32).eps)) if norm.epsilon is None else norm.epsilon
    shape, axes = y.shape, (1, 3) if norm.groups else (-1,)
    y = y.reshape(*shape[:2], norm.groups, -1) if norm.groups else y
    y = y if norm.kind == "rms" else y - y.mean(axes, keepdims=True)
    y = (y / np.sqrt((y * y).mean(axes, keepdims=True) + epsilon)).reshape(shape)
    if norm.weight:
        y = y * (_along(call.held[norm.weight], y) + norm.one_more)
    return y + _along(call.held[norm.bias], y) if norm.bias else y


def _along(parameter: Array, y: Array) -> Array:
    """A weight of one norm (d,), or of one for each head (H, d), beside y (…, d) or (B, H, L, d)."""
    return parameter.reshape(parameter.shape[0], 1, -1) if parameter.ndim > 1 and y.ndim == 4 else parameter.reshape(-1)


def turned(rotation: Rotation | None, part: str, y: Array, call: Call) -> Array:
    """y (B, H, L, d) with its features turned; all but queries and keys stay as they are."""
    if rotation is None or part not in rotation.who:
        return y
    if part == "k" and rotation.keys:
        rotation = replace(rotation, pairing=rotation.keys, tables=rotation.keys, keys="")
    cos, sin = _angles(rotation, y.shape[1] if rotation.along == HEADS else y.shape[2], call.held)
    if rotation.along == HEADS:
        cos, sin = cos[:, None], sin[:, None]
    n = rotation.features
    turn, rest = (y[..., -n:], y[..., :-n]) if rotation.last else (y[..., :n], y[..., n:])
    if rotation.pairing == "halves":
        other = np.concatenate([-turn[..., n // 2 :], turn[..., : n // 2]], -1)
    else:
        other = np.stack([-turn[..., 1::2], turn[..., ::2]], -1).reshape(turn.shape)
    done = turn * cos + (-other if rotation.back else other) * sin
    return np.concatenate([rest, done] if rotation.last else [done, rest], -1)


def _angles(rotation: Rotation, length: int, held: Held) -> tuple[Array, Array]:
    """Cosines and sines (length, features that turn), from position 0 on."""
    if len(rotation.names) == 2:
        cos, sin = (held[name].reshape(-1, held[name].shape[-1])[:length] for name in rotation.names)
        if cos.shape[-1] == rotation.features:  # as they are used
            return cos, sin
    else:
        frequencies = held[rotation.names[0]].reshape(-1) if rotation.frequencies is None else rotation.frequencies
        angles = (
            np.arange(length, dtype=np.longdouble)[:, None] * frequencies
        )  # its digits: a product of float64 may be off by one rounding
        cos, sin = np.cos(angles).astype(np.float64), np.sin(angles).astype(np.float64)
    wide = (lambda x: np.concatenate([x, x], -1)) if rotation.tables == "halves" else (lambda x: np.repeat(x, 2, -1))
    return wide(cos), wide(sin)


# ---------------------------------------------------------------- from there on


def attended(s: Structure, call: Call, parts: Parts, steps: Steps = RIGHT) -> Array:
    """The answer, of queries, keys and values."""
    q, k, v = parts
    heads = np.arange(s.heads)
    of_k, of_v = (heads % s.kv_heads if part in s.tiled else heads // s.group for part in "kv")
    logits = q @ k[:, of_k].swapaxes(2, 3) * scaled(s, q.shape[3], call)
    if s.slopes:
        logits = logits + _distances(s, s.slopes, logits.shape, call, q.shape[3])
    if s.table:
        logits = logits + s.table.bias(call.held, logits.shape[2], logits.shape[3], steps.reshaped)
    logits = mixed(logits, s.mixing.logits, call.held) if s.mixing else logits
    logits = max(s.cap, 1.0 if s.cap < 0 else 0.0) * np.tanh(logits / abs(s.cap)) if s.cap else logits
    visible = _visible(s, call, steps, logits.shape[2:])
    if visible is not None and not steps.after:
        logits = np.where(visible, logits, HIDDEN[steps.fill])
    sinks = None if not s.sinks else np.zeros(1) if s.sinks == ONE_MORE else call.held[s.sinks].reshape(-1)
    weights = _weights(logits, sinks, steps)
    weights = mixed(weights, s.mixing.weights, call.held) if s.mixing else weights
    weights = weights * visible if visible is not None and steps.after else weights
    out = (weights.swapaxes(2, 3) if steps.transposed else weights) @ v[:, of_v]
    out = (out if steps.merge == "reshape" else out.transpose(0, 2, 1, 3)).reshape(*call.x.shape[:2], -1)
    if "o" in s.places and steps.output:
        w, b = s.places["o"].get(call.held)
        out = out @ w.T + (0.0 if b is None else b)
    last = s.norms.get("out")
    before = last is not None and last.kind == "gain"
    out = normed(last, out, call) if before else out
    out = out + call.x if s.residual else out
    return np.asarray(out if before else normed(last, out, call))


def scaled(s: Structure, d: int, call: Call) -> Array:
    """What logits are multiplied by: one number, or one for each head (H, 1, 1)."""
    times = np.asarray(factor(s.scale, d, s.heads, call.x.shape[2]))
    if s.learned is None:
        return times
    learned = call.held[s.learned.name].reshape(-1, 1, 1)
    ways: dict[str, Callable[[Array], Array]] = {"times": lambda y: y, "exp": np.exp, "over": lambda y: 1 / y}
    return times * ways[s.learned.how](learned)


def _distances(s: Structure, slopes: Slopes, shape: tuple[int, ...], call: Call, d: int) -> Array:
    """(H, L, S): what is far is seen less, by another slope for every head."""
    each = np.abs(call.held[slopes.source].reshape(-1)) if slopes.source else 2.0 ** (-8 * np.arange(1, s.heads + 1) / s.heads)
    away = np.abs(np.arange(shape[2])[:, None] - np.arange(shape[3])[None])
    bias = (1.0 if slopes.grows else -1.0) * each[:, None, None] * away
    return bias * scaled(s, d, call) if slopes.scaled else bias


def _weights(logits: Array, sinks: Array | None, steps: Steps) -> Array:
    high = logits.max(steps.axis, keepdims=True)
    more = None if sinks is None else sinks[:, None, None]
    high = high if more is None else np.maximum(high, more)
    if not steps.divide:
        return np.asarray(np.exp(logits))
    e = np.exp(logits - high)
    total = e.sum(steps.axis, keepdims=True)
    return np.asarray(e / (total if more is None else total + np.exp(more - high)))


def _visible(s: Structure, call: Call, steps: Steps, shape: tuple[int, ...]) -> Array | None:
    """(B or 1, 1, L or 1, S) bool: the keys that are visible under mask, causality and pattern; None: all."""
    visible: Array | None = None
    if call.visible is not None and steps.mask != "none":
        mask = call.visible[:, None]
        ways: dict[str, Callable[[], Array]] = {
            "keys": lambda: mask,
            "inverted": lambda: ~mask,
            "queries": lambda: mask.swapaxes(2, 3),
            "first": lambda: mask[:1],
        }
        visible = ways[steps.mask]()
    rows, keys = shape
    if call.causal and call.itself and steps.frontier is not None:
        earlier = np.tri(rows, keys, k=steps.frontier, dtype=bool)[None, None]
        visible = earlier if visible is None else visible & earlier
    if s.pattern is not None and call.itself:
        near = s.pattern[None, None, :rows, :keys]
        visible = near if visible is None else visible & near
    return visible
