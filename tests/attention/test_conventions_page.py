"""docs/explanation/conventions.md: it names every convention that is asked for, and its tables say what the libraries and the built-ins do.

Each library is asked by plain calls, held against the formula in NumPy; nothing of the checker is in between.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impls.catalogue import CATALOGUE, Entry, load, unavailable
from properties.attention.axes import ANSWERS, LAYOUTS, PACKED
from properties.attention.speech import SAID
from properties.engine.core.supports import CHOICES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "conventions.md").read_text(encoding="utf-8")
Array = np.ndarray[Any, np.dtype[Any]]
Ask = Callable[..., Array]  # q, k, v of axes (batch, heads, length, dim), mask, causal → the output, in the same axes
TEN = 4, 6  # queries, keys


def tables() -> dict[str, dict[str, dict[str, str]]]:
    """The first word of the first heading → row → column → cell, without marks."""
    found = {}
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE):
        heads, _, *rows = ([re.sub(r"[*`]", "", cell).strip() for cell in line.strip("|\n").split(" | ")] for line in block.splitlines())
        found[heads[0]] = {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}
    return found


# ------------------------------------------------------------ every convention


def told() -> set[str]:
    """The names under which answers are told, read off the source: ``told["axes"] = …``."""
    names = set()
    for file in ("conventions", "dialect", "dialect_parameters"):
        for node in ast.walk(ast.parse((ROOT / "properties" / "attention" / f"{file}.py").read_text(encoding="utf-8"))):
            kept = node.targets if isinstance(node, ast.Assign) else []
            for target in kept:
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
                    names.add(target.slice.value)
    return names - set(KEYS)


KEYS = (
    "default_scale",
    "causal",
    "mask_kinds",
    "mask_and_causal",
    "result",
    "empty_rows",
    "empty_rows_added",
    "scales",
    "groups",
    "head_dims",
    "masked_nan",
    "mask_axes",
    "value_dim",
    "zero_sizes",
    "arithmetic",
    "fill",
    "max_length",
    "returned_weights",
    "windows",
)


def test_every_convention_that_is_asked_for_is_on_the_page() -> None:
    asked = tables()["question"]
    names = {name for row in asked.values() for name in row["told as"].split(", ")}
    assert told() <= names, told() - names
    keys = {key for row in asked.values() for key in row["key of supports"].split(", ")}
    assert set(KEYS) | {"layout"} <= keys, keys
    answers = " ".join(row["answers that are known"] for row in asked.values())
    axes = [one.words for one in (*LAYOUTS.values(), *PACKED.values())]
    for words in (*axes, *ANSWERS.values(), *SAID, *(word for key in KEYS for word in CHOICES.get(key, ()))):
        assert words in answers, words


# ------------------------------------------------------------ what is asked


def softmax(q: Array, k: Array, v: Array, seen: Array | None = None, bias: Array | float = 0.0, scale: float | None = None) -> Array:
    logits = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    logits = logits if seen is None else np.where(seen, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def operands(queries: int = 4, keys: int = 6, heads: int = 3, kv_heads: int = 3, value_dim: int = 8) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(0)
    shapes = ((2, heads, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, value_dim))
    return tuple(random.standard_normal(shape).astype(np.float32) for shape in shapes)  # type: ignore[return-value]


def mask() -> Array:
    """Every row sees a key, and one that is causal."""
    seen = np.random.default_rng(1).random((4, 6)) < 0.5
    seen[:, 0], seen[:, -1] = True, False
    return seen


def near(out: Array | None, exact: Array) -> bool:
    return out is not None and out.shape == exact.shape and bool(np.abs(out - exact).max() < 1e-4)


def tried(ask: Ask, *arguments: Array, **options: Any) -> Array | None:
    """None for a call that raises."""
    try:
        return ask(*arguments, **options)
    except Exception:
        return None


def one_of(answers: dict[str, bool]) -> str:
    return next((name for name, holds in answers.items() if holds), "none of them")


TOP, BOTTOM = np.tri(*TEN, dtype=bool), np.tri(*TEN, 2, dtype=bool)


def polarity(ask: Ask) -> str:
    q, k, v = operands()
    out = tried(ask, q, k, v, mask=mask())
    return one_of({"seen": near(out, softmax(q, k, v, mask())), "hidden": near(out, softmax(q, k, v, ~mask())), "takes none": out is None})


def added(ask: Ask) -> str:
    q, k, v = operands()
    bias = np.random.default_rng(2).standard_normal(TEN).astype(np.float32)
    return one_of({"is added": near(tried(ask, q, k, v, mask=bias), softmax(q, k, v, bias=bias))})


def corner(ask: Ask) -> str:
    q, k, v = operands()
    out = tried(ask, q, k, v, causal=True)
    return one_of({"top left": near(out, softmax(q, k, v, TOP)), "bottom right": near(out, softmax(q, k, v, BOTTOM))})


def factor(ask: Ask) -> str:
    q, k, v = operands()
    out = tried(ask, q, k, v)
    return one_of({"1/√dim": near(out, softmax(q, k, v)), "1/dim": near(out, softmax(q, k, v, scale=1 / 8)), "required": out is None})


def grouped(ask: Ask) -> str:
    q, k, v = operands(heads=6, kv_heads=2)
    whole = softmax(q, *(np.repeat(x, 3, axis=1) for x in (k, v)))
    return one_of(
        {"by the shapes": near(tried(ask, q, k, v), whole), "enable_gqa": near(tried(ask, q, k, v, enable_gqa=True), whole), "no": True}
    )


def empty_row(ask: Ask, invert: bool = False) -> str:
    q, k, v = operands()
    seen = mask()
    seen[0] = False
    out = tried(ask, q, k, v, mask=~seen if invert else seen)
    if out is None:
        return "takes no mask"
    row = out[:, :, 0]
    return one_of({"0": bool((row == 0).all()), "NaN": bool(np.isnan(row).all()), "mean": near(row, v.mean(axis=2))})


def hidden_nan(ask: Ask, invert: bool = False) -> str:
    q, k, v = operands()
    k[:, :, -1], v[:, :, -1] = np.nan, np.nan
    out = tried(ask, q, k, v, mask=~mask() if invert else mask())
    return "takes no mask" if out is None else "leaks" if np.isnan(out).any() else "contained"


def together(ask: Ask) -> str:
    q, k, v = operands()
    out = tried(ask, q, k, v, mask=mask(), causal=True)
    alone = {"the mask": softmax(q, k, v, mask()), "the flag": softmax(q, k, v, TOP)}
    return one_of(
        {"both hide": near(out, softmax(q, k, v, mask() & TOP)), **{name: near(out, x) for name, x in alone.items()}, "raises": out is None}
    )


def value_width(ask: Ask) -> str:
    q, k, v = operands(value_dim=5)
    return "yes" if near(tried(ask, q, k, v), softmax(q, k, v)) else "no"


ROWS: dict[str, Callable[[Ask], str]] = {
    "a bool mask is True where a key is": polarity,
    "a float mask": added,
    "causal, L ≠ S: row i sees keys up to": corner,
    "the factor of the logits where none is given": factor,
    "fewer key than query heads": grouped,
    "a row that sees no key": empty_row,
    "NaN in a hidden key and value": hidden_nan,
    "a mask together with the causal flag": together,
    "values of another width than keys": value_width,
}


def sdpa(q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, **options: Any) -> Array:
    torch = pytest.importorskip("torch")
    given = None if mask is None else torch.from_numpy(mask)
    out = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), attn_mask=given, is_causal=causal, **options)
    return np.asarray(out)


def mha(q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, weights: bool = False) -> Array:
    """``nn.MultiheadAttention`` whose projections change nothing, in its own axes."""
    torch = pytest.importorskip("torch")
    b, h, n, d = q.shape
    layer = torch.nn.MultiheadAttention(h * d, h, bias=False)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(h * d).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(h * d))
        given = None if mask is None else torch.from_numpy(mask)
        flat = (torch.from_numpy(x).permute(2, 0, 1, 3).reshape(x.shape[2], b, -1) for x in (q, k, v))
        out = layer(*flat, attn_mask=given, is_causal=causal, need_weights=weights)[0]
    return np.asarray(out.reshape(n, b, h, d).permute(1, 2, 0, 3))


def of_jax(q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False) -> Array:
    jax = pytest.importorskip("jax")
    q, k, v = (np.swapaxes(x, 1, 2) for x in (q, k, v))
    given = {} if mask is None else {"mask" if mask.dtype == bool else "bias": mask[None, None]}
    return np.swapaxes(np.asarray(jax.nn.dot_product_attention(q, k, v, is_causal=causal, **given)), 1, 2)


def of_mlx(q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, **options: Any) -> Array:
    mx = pytest.importorskip("mlx.core")
    given = "causal" if causal else None if mask is None else mx.array(mask)
    return np.array(mx.fast.scaled_dot_product_attention(*map(mx.array, (q, k, v)), mask=given, **options))


def scaled(q: Array, *rest: Array, **options: Any) -> Array:
    return of_mlx(q, *rest, scale=q.shape[-1] ** -0.5, **options)


LIBRARIES: dict[str, tuple[str, dict[str, Callable[[], str]]]] = {
    "PyTorch scaled_dot_product_attention": ("torch", {row: lambda ask=ask: ask(sdpa) for row, ask in ROWS.items()}),  # type: ignore[misc]
    "PyTorch nn.MultiheadAttention": (
        "torch",
        {
            **{row: lambda ask=ask: ask(mha) for row, ask in list(ROWS.items())[:2]},  # type: ignore[misc]
            "the factor of the logits where none is given": lambda: factor(mha),
            "fewer key than query heads": lambda: grouped(mha),
            "a row that sees no key": lambda: f"{empty_row(with_weights, True)} with need_weights, {empty_row(mha, True)} without",
            "NaN in a hidden key and value": lambda: hidden_nan(mha, True),
            "a mask together with the causal flag": lambda: (
                f"{together_hidden(with_weights)} with need_weights, {together_hidden(mha)} without"
            ),
        },
    ),
    "JAX nn.dot_product_attention": ("jax", {row: lambda ask=ask: ask(of_jax) for row, ask in ROWS.items()}),  # type: ignore[misc]
    "MLX fast.scaled_dot_product_attention": (
        "mlx",
        {
            row: lambda ask=ask, row=row: ask(of_mlx if "factor" in row else scaled)  # type: ignore[misc]
            for row, ask in ROWS.items()
            if ask is not together  # it has one argument for both
        },
    ),
}


def with_weights(*arguments: Array, **options: Any) -> Array:
    return mha(*arguments, **options, weights=True)


def together_hidden(ask: Ask) -> str:
    """For a mask that is True where hidden."""
    return together(lambda *arguments, mask, causal: ask(*arguments, mask=~mask, causal=causal))


CELLS = [
    pytest.param(library, row, marks=[pytest.mark.nightly] * (package != "torch"), id=f"{library.split()[0]}-{row}")
    for library, (package, rows) in LIBRARIES.items()
    for row in rows
]


@pytest.mark.parametrize(("library", "row"), CELLS)
def test_a_cell_of_a_library(library: str, row: str) -> None:
    package, asks = LIBRARIES[library]
    pytest.importorskip("mlx.core" if package == "mlx" else package)
    cell = tables()["the same call"][row][library]
    assert re.search(rf"(?<!\w){re.escape(asks[row]())}(?!\w)", cell), (asks[row](), cell)


def test_every_row_is_asked() -> None:
    assert set(tables()["the same call"]) - set(ROWS) == {"axes", "a window"}  # by the shapes of the calls; by test_a_window


@pytest.mark.nightly
def test_a_window() -> None:
    """JAX counts as the page says: (left, right), and the query's own key is not counted."""
    jax = pytest.importorskip("jax")
    q, k, v = operands(keys=4)
    band = np.tri(4, k=1, dtype=bool) & ~np.tri(4, k=-3, dtype=bool)
    given = (np.swapaxes(x, 1, 2) for x in (q, k, v))
    assert near(np.swapaxes(np.asarray(jax.nn.dot_product_attention(*given, local_window_size=(2, 1))), 1, 2), softmax(q, k, v, band))


# ------------------------------------------------------------ the built-ins

BUILT_IN = [entry for entry in CATALOGUE if entry.contract == "attention" and entry.devices != ("cuda",)]


@cache
def built_in(entry: Entry) -> Ask:
    """As it is called: NumPy in, NumPy out."""
    function = load(entry)
    convert: Callable[[Any], Any] = lambda x: x  # noqa: E731
    if "torch" in entry.needs:
        import torch

        convert = torch.from_numpy
    elif "jax" in entry.needs:
        import jax.numpy

        convert = jax.numpy.asarray

    def ask(q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, **options: Any) -> Array:
        given = {} if mask is None else {"attn_mask": convert(mask[None, None])}
        given |= {"is_causal": True} if causal else {}
        out = function(*(convert(swapped(x)) for x in (q, k, v)), **given, **options)
        return swapped(np.asarray(out))

    swapped: Callable[[Array], Array] = lambda x: np.swapaxes(x, 1, 2).copy() if function.supports.get("layout") == "blhd" else x  # noqa: E731
    return ask


@pytest.mark.parametrize(
    "entry", [pytest.param(entry, marks=[pytest.mark.nightly] * ("jax" in entry.needs)) for entry in BUILT_IN], ids=lambda entry: entry.name
)
def test_a_row_of_a_built_in(entry: Entry) -> None:
    if why := unavailable(entry):
        pytest.skip(why)
    table, ask = tables()["built-in"], built_in(entry)
    row = table.get(entry.name, table["all others"])
    assert {heading: ROWS[heading](ask).replace("none of them", "—") for heading in row} == row
    assert [ROWS[heading](ask) for heading in ROWS if heading not in row] == ["top left", "1/√dim"]


def test_the_exceptions_are_built_in() -> None:
    assert set(tables()["built-in"]) - {entry.name for entry in BUILT_IN} == {"all others"}
