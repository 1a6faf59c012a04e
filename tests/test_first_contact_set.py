"""The set of first contact is what its table says: the right ones agree with a reference written here, each wrong twin does not.

Two numbers decide. A right one, computed in float64, may be off by what rounding can do (``allowed``); a wrong one is off by more than
``APPARENT`` on its example, some ten orders of magnitude more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.first_contact.record import Entry, Example, Speaks, Twin
from benchmarks.first_contact.speak import Problem, call, draw, load
from benchmarks.first_contact.table import ENTRIES

APPARENT = 1e-3
TWINS = [pytest.param(entry, twin, id=f"{entry.module}:{entry.twin(twin)}") for entry in ENTRIES for twin in entry.twins]
SHAPES = (Example(), Example(batch=3, queries=9, keys=20, dim=16, value_dim=5, seed=1))
SQUARE = Example(queries=20, keys=20, seed=2)


def spread(x: np.ndarray, letters: str, e: Example) -> np.ndarray:
    """A mask or a bias of these axes → (batch, heads, queries, keys), as far as it broadcasts."""
    match letters:
        case "nls":
            return x.reshape(e.batch, e.heads, e.queries, e.keys)
        case "bls":
            return x[:, None]
        case "bs":
            return x[:, None, None, :]
        case _:  # ls, hls, and those of four axes
            return x


def visible(speaks: Speaks, p: Problem) -> np.ndarray:
    """(batch, heads, queries, keys)"""
    e = p.example
    ahead = np.arange(e.keys)[None, :] - np.arange(e.queries)[:, None]  # key − query
    if speaks.corner == "bottom-right":
        ahead = ahead - (e.keys - e.queries)
    seen = np.ones((e.batch, e.heads, e.queries, e.keys), dtype=bool)
    causal = e.causal or speaks.causal == "always"
    if speaks.single_query == "sees all" and e.queries == 1:
        causal = False
    if p.mask is not None:
        seen &= spread(p.mask, speaks.mask_axes, e)
        causal &= speaks.together == "both"
    if causal:
        seen &= ahead <= 0
    if e.window is not None:
        left, right = e.window
        seen &= ahead >= -left
        seen &= (ahead <= right) | (right < 0)
    if p.padding is not None:
        seen &= p.padding[:, None, None, :]
    if p.lengths is not None:
        seen &= np.arange(e.keys) < p.lengths[:, None, None, None]
    return seen


def reference(speaks: Speaks, p: Problem) -> tuple[dict[str, np.ndarray], float]:
    """The answer, a row at a time, and how large the terms of a logit are together."""
    e = p.example
    group = e.heads // p.k.shape[1]
    scale = {"1": 1.0, "1/d": 1 / e.dim}.get(speaks.scale, e.dim**-0.5) if e.scale is None else e.scale
    seen = visible(speaks, p)
    bias = np.zeros(seen.shape)
    if p.bias is not None:
        bias = bias + spread(p.bias, speaks.bias_axes if "bias" in speaks.names else speaks.mask_axes, e)
    if p.slopes is not None:
        offset = e.keys - e.queries if speaks.corner == "bottom-right" else 0
        bias = bias - p.slopes[:, None, None] * abs(np.arange(e.keys) - np.arange(e.queries)[:, None] - offset)
    out = np.zeros((e.batch, e.heads, e.queries, p.v.shape[3]))
    weights, lse = np.zeros(seen.shape), np.full(seen.shape[:3], -np.inf)
    size = 0.0
    for b, h, i in np.ndindex(*seen.shape[:3]):
        k, v = p.k[b, h // group], p.v[b, h // group]
        logits = np.array([scale * np.dot(p.q[b, h, i], key) for key in k])
        if e.softcap is not None:
            logits = e.softcap * np.tanh(logits / e.softcap)
        logits = logits + bias[b, h, i]
        size = max(size, np.max(abs(scale) * (abs(k) @ abs(p.q[b, h, i])) + abs(bias[b, h, i])))
        keys = np.flatnonzero(seen[b, h, i])
        if len(keys):
            sink = [] if p.sinks is None else [p.sinks[h]]
            top = max(*logits[keys], *sink, -np.inf)
            total = np.exp(logits[keys] - top).sum() + np.exp(np.array(sink) - top).sum()
            weights[b, h, i, keys] = np.exp(logits[keys] - top) / total
            lse[b, h, i] = top + np.log(total)
        else:
            weights[b, h, i] = {"nan": np.nan, "zero": 0.0, "mean": 1 / e.keys}[speaks.empty_rows]
        out[b, h, i] = weights[b, h, i] @ v
    return {"out": out, "weights": weights, "lse": lse}, size


def allowed(speaks: Speaks, p: Problem, size: float, name: str) -> float:
    """What rounding can do to an answer, to first order.

    A logit is a sum of dim products, scaled, with a bias and less a maximum: off by (dim + 8)·eps·size at most, size being the sum of the
    magnitudes of its terms. A weight is the exponential of it over a sum of keys: relatively twice that, and (keys + 8)·eps. The sum with
    the values adds keys·eps·max|v|. Both sides round, hence twice; eps is twice the unit of rounding, so that nothing here is tight.
    """
    eps = np.finfo(np.float32 if speaks.computes == "float32" or speaks.dtypes == ("float32",) else np.float64).eps
    e = p.example
    most = {"out": abs(p.v).max(), "weights": 1.0, "lse": 1.0 + size}[name]
    return 2 * eps * (2 * (e.dim + 8) * size + 2 * e.keys + 16) * most


def examples(speaks: Speaks) -> list[Example]:
    """What its conventions let a function be asked."""
    small, large = SHAPES
    asked = [small, large]
    if speaks.mask:
        asked += [replace(shape, mask="random", kind=kind) for shape in SHAPES for kind in range(len(speaks.mask))]
    if "additive" in speaks.mask or "bias" in speaks.names:
        kind = speaks.mask.index("additive") if "additive" in speaks.mask else 0
        asked += [replace(shape, bias=True, kind=kind) for shape in SHAPES]
    if speaks.causal in ("flag", "mask='causal'"):
        asked += [replace(shape, causal=True) for shape in (small, large, SQUARE)]
        if speaks.mask and speaks.together != "refused":
            asked += [replace(shape, causal=True, mask="random") for shape in (small, SQUARE)]
    if speaks.causal == "always":
        asked += [SQUARE]
    if speaks.single_query:
        asked += [replace(small, causal=True, queries=1)]
    asked += [replace(small, **{name: value}) for name, value in {"scale": 0.7, "softcap": 2.0}.items() if name in speaks.names]
    asked += [replace(large, **{name: True}) for name in ("slopes", "lengths", "padding") if name in speaks.names]
    if "padding" in speaks.names:
        asked += [replace(small, padding=True, mask="random")]
    if speaks.window:
        asked += [replace(large, window=(2, -1 if speaks.window == "left" else 0 if speaks.window == "own included" else 1))]
        asked += [replace(large, window=(3, 0), causal=True)] if speaks.causal == "flag" and speaks.window == "(left, right)" else []
    if speaks.mask and speaks.empty_rows:
        asked += [replace(small, mask="empty row")]
    if speaks.corner == "bottom-right" and speaks.empty_rows and speaks.causal == "flag":
        asked += [replace(small, queries=7, keys=4, causal=True)]
    return asked


def apart(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The largest difference of what both have; infinite where one is NaN and the other is not."""
    most = 0.0
    for name in a.keys() & b.keys():
        assert a[name].shape == b[name].shape, name
        same = (a[name] == b[name]) | (np.isnan(a[name]) & np.isnan(b[name]))
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, abs(a[name] - b[name]))
        most = max(most, np.nan_to_num(difference, nan=np.inf).max(initial=0.0))
    return most


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # rows without keys that are NaN
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_right_one_agrees_with_the_reference(entry: Entry) -> None:
    function = load(entry, entry.function)
    for example in examples(entry.speaks):
        problem = draw(example, entry.speaks)
        expected, size = reference(entry.speaks, problem)
        for name, value in call(function, entry.speaks, problem).items():
            off = apart({name: value}, {name: expected[name]})
            assert off <= allowed(entry.speaks, problem, size, name), (name, problem.example)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the overflow that is the mistake
@pytest.mark.parametrize(("entry", "twin"), TWINS)
def test_a_wrong_one_differs_on_its_example(entry: Entry, twin: Twin) -> None:
    problem = draw(twin.example, entry.speaks)
    right = call(load(entry, entry.function), entry.speaks, problem)
    wrong = call(load(entry, entry.twin(twin)), entry.speaks, problem)
    assert apart(right, wrong) > APPARENT


@pytest.mark.parametrize(("entry", "twin"), [param for param in TWINS if param.values[1].core])
def test_a_mistake_in_the_core_shows_on_rows_that_see_a_key(entry: Entry, twin: Twin) -> None:
    example = draw(twin.example, entry.speaks).example
    assert example.mask != "empty row" or example.gradient  # the gradient of keys that other rows share
    assert visible(entry.speaks, draw(twin.example, entry.speaks)).any(axis=-1).all() or example.gradient


def test_gradients_of_the_right_ones() -> None:
    """Of own_backward, in closed form: dS = P ⊙ (dP − rowsum(dP ⊙ P)). In float64; a twin is off by more than APPARENT."""
    entry = next(entry for entry in ENTRIES if entry.function == "own_backward")
    problem = draw(Example(bias=True), entry.speaks)
    P = reference(entry.speaks, problem)[0]["weights"]
    d_out = np.random.default_rng(problem.example.seed + 1).standard_normal((*problem.q.shape[:3], problem.v.shape[3]))
    dP = d_out @ problem.v.swapaxes(2, 3)
    dS = P * (dP - (dP * P).sum(-1, keepdims=True))
    scale = problem.example.dim**-0.5
    expected = {"q": dS @ problem.k * scale, "k": dS.swapaxes(2, 3) @ problem.q * scale, "v": P.swapaxes(2, 3) @ d_out, "bias": dS}
    for wanted, gradient in expected.items():
        asked = replace(problem, example=replace(problem.example, gradient=wanted))
        assert abs(call(load(entry, entry.function), entry.speaks, asked)["gradient"] - gradient).max() < 1e-9 * APPARENT


def test_every_function_has_its_line() -> None:
    """No function of the modules is left out of the table, and no name stands there twice."""
    names = [f"{entry.module}:{name}" for entry in ENTRIES for name in (entry.function, *map(entry.twin, entry.twins))]
    assert len(names) == len(set(names))
    written = set()
    for file in {entry.file for entry in ENTRIES}:
        lines = file.read_text(encoding="utf-8").splitlines()
        written |= {f"{file.stem}:{line[4:].split('(')[0]}" for line in lines if line.startswith("def ")}
        assert not any(word in line for line in lines for word in ("attncheck", "import properties", "supports ="))
    assert set(names) == {name for name in written if not name.split(":")[1].startswith("_") and name != "numpy_functions:softmax"}
    assert len(ENTRIES) >= 40 and all(entry.twins for entry in ENTRIES)
