"""Weights drawn anew: the default initialisation hides mistakes, but is what a shortcut may be made for.

A matrix gets normal numbers that keep the size of what passes through, so that queries, keys and logits are of order one; biases are
not zero, norms not one. Every number is a hash of the seed, the parameter's name and its coordinates.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod, sqrt
from typing import Any

import numpy as np

from ..engine.cases import coordinates
from ..engine.cases.coordinates import Array
from ..engine.frameworks import Framework

NORMAL, UNIFORM, SMALL = "normal", "uniform", "small"
LITTLE = 0.02  # the standard deviation of matrices at first in BERT and GPT-2 (Devlin et al. 2018; Radford et al. 2019), whose biases are 0
MOST_KEPT = 2**26  # numbers of weights, 512 MiB
BIAS, NORM = 0.5, 0.25  # standard deviations: of what starts at zero, and relative ones of what starts at another number


def draw(module: Any, seed: int, gain: float, fw: Framework, how: str = NORMAL) -> None:
    """Give every floating-point parameter of a module new numbers; ``gain`` multiplies matrices. Buffers stay as they are.

    ``how``: as above, or as layers have them at first, where norms stay as they are: uniform within one over the square root of what is
    summed over, biases, too (``nn.Linear``), or small, without biases.
    """
    owners = {
        f"{place}.{name}".lstrip("."): kind for place, kind in module.named_modules() for name, _ in kind.named_parameters(recurse=False)
    }
    for name, parameter in module.named_parameters():
        if not parameter.dtype.is_floating_point:
            continue
        shape = tuple(parameter.shape)
        drawn = _again(seed, name, shape)
        owner = owners.get(name)
        kind = type(owner).__name__
        is_matrix, is_bias = len(shape) > 1 and prod(shape) > max(shape), kind.endswith("Linear") or "Conv" in kind
        if is_matrix and how == NORMAL:
            new = gain * scale(shape, kind, name) * drawn
        elif is_matrix:
            new = gain * (LITTLE * drawn if how == SMALL else scale(shape, kind, name) * _within(seed, name, shape))
        elif is_bias and how != NORMAL:
            weight = tuple(getattr(getattr(owner, "weight", None), "shape", ())) or (1,)
            new = 0.0 * drawn if how == SMALL else scale(weight, kind, "") * _within(seed, name, shape)
        elif is_bias:  # whatever a few random numbers look like
            new = BIAS * drawn
        elif how == NORMAL:
            new = _near(fw.read(parameter.data), drawn)
        else:
            continue
        fw.assign(parameter.data, new)


def silence(module: Any, names: Collection[str], fw: Framework) -> None:
    """Put the parameters of these names to 0."""
    for name, parameter in module.named_parameters():
        if name in names:
            fw.assign(parameter.data, np.zeros(tuple(parameter.shape)))


def noise(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """Nearly normal numbers of any shape."""
    if len(shape) <= 4:
        return coordinates.normal(seed, name, shape) if shape else coordinates.normal(seed, name, (1,)).reshape(())
    return coordinates.normal(seed, name, (prod(shape),)).reshape(shape)


_DRAWN: dict[tuple[int, str, tuple[int, ...]], Array] = {}  # of one seed


def _again(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """The same as long as one seed is asked for: a module whose weights are many is made a dozen times with the same ones."""
    if (drawn := _DRAWN.get((seed, name, shape))) is None:
        if any(of != seed for of, _, _ in _DRAWN) or sum(map(np.size, _DRAWN.values())) + prod(shape) > MOST_KEPT:
            _DRAWN.clear()
        drawn = noise(seed, name, shape)
        drawn.setflags(write=False)
        if drawn.size <= MOST_KEPT:
            _DRAWN[seed, name, shape] = drawn
    return drawn


def _within(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """Uniform between −1 and 1."""
    return 2 * coordinates.uniform(seed, f"{name} uniform", (prod(shape),)).reshape(shape) - 1


def scale(shape: tuple[int, ...], kind: str, name: str) -> float:
    """The standard deviation of the numbers of a matrix: one over the square root of what it sums over."""
    if kind == "Embedding" or "pos" in name.lower() or "emb" in name.lower().rpartition(".")[2]:
        return 1.0
    if kind.endswith("Linear"):
        return 1 / sqrt(shape[-1])
    if kind == "Conv1D":  # GPT-2's: (in, out)
        return 1 / sqrt(shape[0])
    if "Conv" in kind:
        return 1 / sqrt(prod(shape[1:]))
    return 1 / sqrt(min(shape) if len(shape) == 2 and min(shape) > 1 else max(shape))


def _near(now: Array, drawn: Array) -> Array:
    """Numbers near those that are there: what starts at zero, or at nothing, is a bias; what starts elsewhere keeps its size."""
    usual = np.isfinite(now).all() and bool(np.abs(now).max(initial=0.0) < 1e4) and bool((now > 0).all() or (now < 0).all())
    return np.asarray(now * (1 + NORM * drawn) if usual else BIAS * drawn)
