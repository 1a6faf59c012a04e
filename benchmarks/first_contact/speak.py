"""Problems in one form, (batch, heads, length, dim) in float64, put to a function in its own: ``call(function, speaks, draw(example, speaks))``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.first_contact.record import Entry, Example, Speaks


@dataclass(frozen=True)
class Problem:
    example: Example
    q: np.ndarray  # (batch, heads, queries, dim)
    k: np.ndarray  # (batch, key heads, keys, dim)
    v: np.ndarray
    mask: np.ndarray | None  # True where seen; its axes are those of ``mask_axes``
    bias: np.ndarray | None  # of ``bias_axes``, or of ``mask_axes`` where the mask is what is added
    padding: np.ndarray | None  # (batch, keys), True where seen
    lengths: np.ndarray | None  # (batch,)
    slopes: np.ndarray | None  # (heads,)
    sinks: np.ndarray | None  # (heads,)


def load(entry: Entry, name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(f"benchmarks.first_contact.{entry.module}"), name)


def fit(example: Example, speaks: Speaks) -> Example:
    """The example within what the function takes."""
    queries, keys = (-(-n // speaks.multiple) * speaks.multiple for n in (example.queries, example.keys))
    causal = example.causal or speaks.causal == "always"
    if speaks.square or (causal and speaks.corner == "square" and not (speaks.single_query and queries == 1)):
        keys = queries
    dim = example.dim if not speaks.dims or example.dim in speaks.dims else speaks.dims[0]
    return replace(
        example,
        batch=example.batch if "b" in speaks.layout else 1,
        heads=example.heads if set("hk") & set(speaks.layout) or speaks.layout.startswith("[") else 1,
        queries=queries,
        keys=keys,
        dim=dim,
        value_dim=dim if speaks.same_dims or example.value_dim is None else example.value_dim,
        scale=example.scale if "scale" not in speaks.names or speaks.scale != "required" or example.scale is not None else dim**-0.5,
        window=speaks.always_window or example.window,
    )


def axes(letters: str, e: Example) -> tuple[int, ...]:
    sizes = {"b": e.batch, "h": e.heads, "l": e.queries, "s": e.keys, "n": e.batch * e.heads, "1": 1}
    return tuple(sizes[letter] for letter in letters)


def draw(example: Example, speaks: Speaks) -> Problem:
    """Tensors from the seed. A row sees its own key and the first, but for the first row of a mask with an empty row."""
    e = fit(example, speaks)
    random = np.random.default_rng(e.seed)
    kv_heads = {"grouped": max(1, e.heads // 2), "flag": max(1, e.heads // 2), "one": 1}.get(speaks.heads, e.heads)
    q = random.standard_normal((e.batch, e.heads, e.queries, e.dim)) * e.magnitude
    k = random.standard_normal((e.batch, kv_heads, e.keys, e.dim))
    v = random.standard_normal((e.batch, kv_heads, e.keys, e.value_dim))
    mask = None
    if e.mask:
        mask = random.random(axes(speaks.mask_axes, e)) < 0.5
        mask[..., 0] = True
        if "l" in speaks.mask_axes:
            offset = e.keys - e.queries if speaks.corner == "bottom-right" else 0
            mask |= np.eye(e.queries, e.keys, offset, dtype=bool)
        if e.mask == "not the first":
            mask[...] = True
            mask[..., 1:, 0] = False
        if e.mask == "empty row":
            mask[..., 0, :] = False  # of a mask of (batch, keys): the first sequence
            mask[1:] |= "l" not in speaks.mask_axes
    bias_axes = speaks.bias_axes if "bias" in speaks.names else speaks.mask_axes
    return Problem(
        e,
        q,
        k,
        v,
        mask,
        bias=random.standard_normal(axes(bias_axes, e)) if e.bias else None,
        padding=np.arange(e.keys) < random.integers(1, e.keys, (e.batch, 1)) if e.padding else None,
        lengths=random.integers(1, e.keys, e.batch) if e.lengths else None,
        slopes=2.0 ** -np.arange(1, e.heads + 1) if e.slopes else None,
        sinks=random.standard_normal(e.heads) if "sinks" in speaks.names else None,
    )


def arrange(x: np.ndarray, layout: str, key_heads: int) -> Any:
    """(batch, heads, length, dim) → the layout."""
    b, h, n, d = x.shape
    match layout:
        case "ld":
            return x[0, 0]
        case "bld":
            return x[:, 0]
        case "bdl":
            return x[:, 0].swapaxes(1, 2)
        case "hld":
            return x[0]
        case "lhd":
            return x[0].swapaxes(0, 1)
        case "bhld":
            return x
        case "blhd":
            return x.swapaxes(1, 2)
        case "lbhd":
            return x.transpose(2, 0, 1, 3)
        case "(bh)ld":
            return x.reshape(b * h, n, d)
        case "bl(hd)":
            return x.swapaxes(1, 2).reshape(b, n, h * d)
        case "lb(hd)":
            return x.transpose(2, 0, 1, 3).reshape(n, b, h * d)
        case "lkgd":
            return x[0].reshape(key_heads, h // key_heads, n, d).transpose(2, 0, 1, 3)
        case "[ld]":
            return list(x[0])
        case "[bld]":
            return list(x.swapaxes(0, 1))
    raise ValueError(layout)


def restore(y: Any, layout: str, e: Example) -> np.ndarray:
    """Back to (batch, heads, queries, features)."""
    if layout.startswith("["):
        y = np.stack(y)  # (heads, …)
        return y[None] if layout == "[ld]" else y.swapaxes(0, 1)
    y = np.asarray(y)
    features = y.size // (e.batch * e.heads * e.queries)
    match layout:
        case "ld" | "bld" | "hld" | "(bh)ld" | "bhld":
            return y.reshape(e.batch, e.heads, e.queries, features)
        case "bdl":
            return y.swapaxes(1, 2)[:, None]
        case "lhd" | "lkgd":
            return y.reshape(e.queries, e.heads, features).swapaxes(0, 1)[None]
        case "blhd" | "bl(hd)":
            return y.reshape(e.batch, e.queries, e.heads, features).swapaxes(1, 2)
        case "lbhd" | "lb(hd)":
            return y.reshape(e.queries, e.batch, e.heads, features).transpose(1, 2, 0, 3)
    raise ValueError(layout)


def encode(mask: np.ndarray | None, bias: np.ndarray | None, kind: str) -> np.ndarray:
    """A mask (True where seen), with what is to be added where it is a mask that is added."""
    if kind == "additive":
        assert mask is not None or bias is not None
        return np.where(True if mask is None else mask, 0.0 if bias is None else bias, -np.inf)
    assert mask is not None
    return {"true seen": mask, "true hidden": ~mask, "0 hidden": mask.astype(int), "1 seen": mask * 1.0, "1 hidden": ~mask * 1.0}[kind]


def keywords(speaks: Speaks, p: Problem) -> dict[str, Any]:
    e, names = p.example, speaks.names
    kwargs = {name: np.zeros(axes(speaks.bias_axes, e)) if value == "zeros" else value for name, value in speaks.given.items()}
    kind = speaks.mask[e.kind] if speaks.mask else ""
    if p.bias is not None and "bias" in names:
        kwargs[names["bias"]] = p.bias
    if p.mask is not None or (p.bias is not None and "bias" not in names):
        kwargs[names["mask"]] = encode(p.mask, None if "bias" in names else p.bias, kind)
    if p.padding is not None:
        kwargs[names["padding"]] = ~p.padding
    if speaks.causal == "flag":
        kwargs[names["causal"]] = e.causal
    elif speaks.causal == "mask='causal'" and e.causal:
        kwargs["mask"] = "causal"
    if e.scale is not None:
        kwargs[names["scale"]] = e.scale
    if e.window is not None and speaks.window:
        left, right = e.window
        kwargs[names["window"]] = {"(left, right)": (left, right), "left": left, "own included": left + 1}[speaks.window]
    if e.softcap is not None:
        kwargs[names["softcap"]] = e.softcap
    if e.dropout is not None:
        kwargs[names["dropout"]] = e.dropout
    if speaks.heads == "flag":
        kwargs["enable_gqa"] = True
    if "heads" in names:
        kwargs[names["heads"]] = e.heads
    for field in ("lengths", "slopes", "sinks"):
        if getattr(p, field) is not None:
            kwargs[names[field]] = getattr(p, field)
    return kwargs


def call(function: Callable[..., Any], speaks: Speaks, p: Problem) -> dict[str, np.ndarray]:
    """out (batch, heads, queries, features), and what else comes back, by its name; or the gradient of the example."""
    e, kv = p.example, p.k.shape[1]
    dtype = speaks.dtypes[0] if speaks.dtypes else "float64"

    def give(x: Any) -> Any:
        if isinstance(x, list):
            return [give(y) for y in x]
        if not isinstance(x, np.ndarray):
            return x
        x = np.array(x, dtype=dtype if x.dtype == np.float64 else x.dtype, order="C")
        if speaks.framework == "numpy":
            return x
        import torch

        return torch.from_numpy(x).requires_grad_(bool(e.gradient) and x.dtype == np.float64)

    q = arrange(p.q, speaks.layout.replace("3", ""), kv)
    k, v = (arrange(x, speaks.key_layout or speaks.layout.replace("3", ""), kv) for x in (p.k, p.v))
    given = [give(x) for x in ([np.stack((q, k, v), axis=speaks.layout.index("3"))] if "3" in speaks.layout else [q, k, v])]
    kwargs = {name: give(x) for name, x in keywords(speaks, p).items()}
    tensors = dict(zip("qkv", given)) | {"bias": kwargs.get(speaks.names.get("bias", speaks.names.get("mask", "")))}  # noqa: B905
    if speaks.result == "out argument":
        kwargs["out"] = give(arrange(np.full((*p.q.shape[:3], p.v.shape[3]), 0.5), speaks.layout, kv))
    if speaks.first:
        given = [SimpleNamespace(num_key_value_groups=e.heads // kv, training=False, is_causal=False), *given]
    if speaks.keyword_only:
        given, kwargs = [], kwargs | dict(zip(("queries", "keys", "values"), given, strict=True))
    if speaks.framework == "torch":
        import torch

        torch.manual_seed(e.seed)
    for _ in range(e.calls):
        result = function(*given, **kwargs)
    if e.gradient:
        out = result[0] if isinstance(result, tuple) else result
        seed = give(np.random.default_rng(e.seed + 1).standard_normal(tuple(out.shape)))
        out.backward(seed.detach())
        grad = tensors[e.gradient].grad
        return {"gradient": np.zeros(tensors[e.gradient].shape) if grad is None else grad.numpy()}
    return read(result, kwargs, speaks, e)


def read(result: Any, kwargs: dict[str, Any], speaks: Speaks, e: Example) -> dict[str, np.ndarray]:
    match speaks.result:
        case "array":
            parts = [result]
        case "out argument":
            assert result is None
            parts = [kwargs["out"]]
        case "dict":
            parts = [result["output"], result["attention_weights"]]
        case "named":
            parts = [result.output, result.weights]
        case _:
            parts = list(result)
    assert len(parts) == len(speaks.returns)
    named = {name: part for name, part in zip(speaks.returns, parts, strict=True) if name != "None"}
    answer = {"out": restore(named["out"], speaks.out_layout or speaks.layout.replace("3", ""), e)}
    for name in ("weights", "probabilities"):
        if name in named:
            answer["weights"] = np.asarray(named[name]).reshape(e.batch, e.heads, e.queries, e.keys)
    if "lse" in named:
        lse = np.asarray(named["lse"])
        lse = lse.T[None] if speaks.layout == "lhd" else lse
        answer["lse"] = lse * (1.0 if speaks.lse_base is None else np.log(speaks.lse_base))
    return answer
