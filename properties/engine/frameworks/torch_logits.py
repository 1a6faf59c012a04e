"""By what the products of queries and keys are multiplied on their way into a softmax, and along which axis its weights are summed.

Both are read off the operations of a call.

Queries and keys are what a product of two arrays is made of, neither of them a parameter. Rows of both have a length; where every length is
that of a row of some projection, times one number, the row was scaled by it, and perhaps turned. What is added to a product, as a bias of
distances is, is the same for all sequences: it cancels in the difference of two; so does what is the same for a row. Nothing is said where
one of this is not so.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from .protocol import ELSEWHERE, STRETCHED

PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "einsum", "baddbmm")
PROJECTIONS = tuple(f.__name__ for f in (torch.nn.functional.linear, torch.nn.functional.conv1d, torch.nn.functional.conv2d))
NEAR = 1e-7  # of numbers in float64
COARSE = 1e-4  # of numbers that float32 holds: rows that are further from all others are no rounded ones
TOGETHER = 3  # products of which logits may be the sum: of keys, and of positions
HIDES = 1e30  # as far below 0, or farther
FEW, MANY = 8, 4096  # lengths that differ: fewer may be those of others by chance; of more some are looked at


def of_weights(x: Any) -> bool:
    """Whether it is a parameter, a part of one, or one turned round; or holds such."""
    if isinstance(x, tuple | list):
        return any(map(of_weights, x))
    return isinstance(x, torch.Tensor) and isinstance(x if x._base is None else x._base, torch.nn.Parameter)


class Logits:
    """What a call has computed so far."""

    def __init__(self) -> None:
        self.projected: list[torch.Tensor] = []
        self.products: list[tuple[torch.Tensor, torch.Tensor, str]] = []
        self.weights: list[tuple[torch.Tensor, int]] = []  # what came out of a softmax, and over which axis, from the last

    def weighed(self, weights: torch.Tensor, along: int) -> None:
        """What came out of a softmax over an axis."""
        self.weights.append((weights, along - weights.dim() if along >= 0 else along))

    def see(self, name: str, args: Any, out: Any) -> str:
        """A function that was called, and what came back; ``ELSEWHERE`` where weights are summed along another axis than their softmax is over."""
        if name in PROJECTIONS:
            self.projected.append(out)
        elif name in PRODUCTS:
            equation = args[0] if name == "einsum" else ""
            given = args[1:] if name == "einsum" else args[1:3] if name == "baddbmm" else args[:2]
            given = given[0] if name == "einsum" and len(given) == 1 and isinstance(given[0], list | tuple) else given
            if len(given) != 2 or not all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in given):
                return ""
            a, b = given[::-1] if name == "__rmatmul__" else given
            if of_weights(a) or of_weights(b):
                self.projected.append(out)
            else:
                self.products.append((a, b, equation))
                return self._summed(a, b, equation)
        return ""

    def _summed(self, a: torch.Tensor, b: torch.Tensor, equation: str) -> str:
        axes = _axes(equation) if equation else (-1, -2)
        for x, summed in zip((a, b), axes or (), strict=False):
            for weights, along in self.weights:
                for turned in (False, True):
                    same = weights.mT if turned else weights
                    if same.numel() == x.numel() and same.shape[-2:] == x.shape[-2:] and torch.equal(same.reshape(x.shape), x):
                        over = {-1: -2, -2: -1}.get(along, along) if turned else along
                        return "" if over == summed or weights.shape[-1] == 1 else ELSEWHERE
        return ""

    def scaled(self, logits: torch.Tensor) -> str:
        """``logits of D features and H heads times F``, for those that a softmax is given; ``STRETCHED``; "" where nothing is known."""
        stretched = False
        fitting = [m for a, b, equation in self.products if (m := _measured(a, b, equation)) and _fits(m[0], logits)]
        # of equal products, as of tokens that are given twice, each would have its part of the factor
        found = [m for at, m in enumerate(fitting) if not any(torch.equal(m[0], other) for other, *_ in fitting[at + 1 :])][-TOGETHER:]
        factors = _factors(logits.double(), [product.double().reshape(logits.shape) for product, *_ in found])
        for (_, rows, columns, features), times in zip(found, factors, strict=False):
            scales = [self._of_a_projection(lengths, features) for lengths in (rows, columns)]
            if scales[0] and scales[1]:
                return _words(times * scales[0] * scales[1], features, logits)
            stretched = stretched or self._stretched(rows, columns, features)
        return STRETCHED if stretched else ""

    def fused(self, query: torch.Tensor, key: torch.Tensor, scale: float | None) -> str:
        """The same of a fused attention, which is given them."""
        features = query.shape[-1]
        scales = [self._of_a_projection(x.norm(dim=-1), features) for x in (query, key)]
        times = features**-0.5 if scale is None else scale
        if scales[0] and scales[1]:
            return _words(times * scales[0] * scales[1], features, query)
        return STRETCHED if self._stretched(query.norm(dim=-1), key.norm(dim=-1), features) else ""

    def _stretched(self, rows: torch.Tensor, columns: torch.Tensor, features: int) -> bool:
        """Whether the rows of both are those of no projection, rounding aside."""
        return all(self._of_a_projection(lengths, features, COARSE) == 0.0 for lengths in (rows, columns))

    def _of_a_projection(self, lengths: torch.Tensor, features: int, near: float = NEAR) -> float | None:
        """By what rows of these lengths are longer than the rows of some projection that they are; 0.0 where they are none; None of too few."""
        wanted = lengths.double().flatten().unique()
        wanted = wanted[wanted > NEAR][:MANY]
        if len(wanted) < FEW:
            return None
        for out in reversed(self.projected):
            for axis in {-1, 1}:
                rows = out.movedim(axis, -1)
                if rows.shape[-1] % features:
                    continue
                for form, along in (((-1, features), -1), ((features, -1), -2)):
                    held = rows.unflatten(-1, form).norm(dim=along).double().flatten().unique()
                    held = held[held > NEAR]
                    if len(held) < FEW or len(held) > MANY:
                        continue
                    factors = wanted[len(wanted) // 2] / held  # one of them is it; most are no other row's, either
                    factors = factors[_held(wanted[:: max(len(wanted) // 4, 1)], factors, held, near)]
                    found = factors[_held(wanted, factors, held, near)] if len(factors) else factors
                    if len(found):
                        return float(found[0])
        return 0.0


def _held(wanted: torch.Tensor, factors: torch.Tensor, held: torch.Tensor, near: float) -> torch.Tensor:
    """Which of the factors are such that all that are wanted are they, times one of those that are held, in their order."""
    scaled = wanted / factors[:, None]
    at = torch.searchsorted(held, scaled).clamp(1, len(held) - 1)
    off = torch.minimum((held[at] / scaled - 1).abs(), (held[at - 1] / scaled - 1).abs())
    return (off < near).all(-1)


def _measured(a: torch.Tensor, b: torch.Tensor, equation: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int] | None:
    """(the product of two arrays, the lengths of the rows of each, how many features they have); None where it is no such product."""
    if not equation:
        return (a @ b, a.norm(dim=-1), b.norm(dim=-2), a.shape[-1]) if min(a.dim(), b.dim()) > 1 else None
    axes = _axes(equation)
    return (torch.einsum(equation, a, b), a.norm(dim=axes[0]), b.norm(dim=axes[1]), a.shape[axes[0]]) if axes else None


def _axes(equation: str) -> tuple[int, int] | None:
    """The axis of each operand, from the last, along which an equation sums; None where there is not one alone."""
    found = re.fullmatch(r"([\w.]+),([\w.]+)->([\w.]+)", equation.replace(" ", ""))
    if found is None:
        return None
    first, second, answer = found.groups()
    summed = {*first} & {*second} - {*answer, "."}
    rests = [form.partition(letter)[2] for letter in summed for form in (first, second)]
    return (-len(rests[0]) - 1, -len(rests[1]) - 1) if len(rests) == 2 and "." not in "".join(rests) else None


def _fits(product: torch.Tensor, logits: torch.Tensor) -> bool:
    return product.shape[-1] == logits.shape[-1] and product.numel() == logits.numel()


def _factors(logits: torch.Tensor, products: list[torch.Tensor]) -> list[float]:
    """By what each product was multiplied, of which the logits are the sum, but for what is the same in both halves of the sequences."""
    if not products or logits.shape[0] % 2:
        return []
    finite = logits.abs() < HIDES  # the lowest number of a type hides a logit, too, and no mean of it is a number
    one, *others = (x.reshape(2, -1)[0] - x.reshape(2, -1)[1] for x in (_without_mean(x, finite) for x in (logits, *products)))
    seen = finite.reshape(2, -1).all(0)
    if int(seen.sum()) < FEW * len(others):
        return []
    matrix = torch.stack(others, -1)[seen]
    if not bool(matrix.isfinite().all()) or int(torch.linalg.matrix_rank(matrix)) < len(others):  # or one is a part of another
        return []
    factors = torch.linalg.lstsq(matrix, one[seen, None]).solution[:, 0]
    off = (matrix @ factors - one[seen]).abs().max()
    return factors.tolist() if bool(off < NEAR * one[seen].abs().max()) else []


def _without_mean(x: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """Of each row, of what is finite: what is subtracted from all logits of a row, such as the largest, changes no weight."""
    kept = torch.where(finite, x, 0.0)
    return torch.where(finite, x - kept.sum(-1, keepdim=True) / finite.sum(-1, keepdim=True).clamp(min=1), 0.0)


def _words(factor: float, features: int, like: torch.Tensor) -> str:
    return f"logits of {features} features and {like.shape[1] if like.dim() > 3 else 1} heads times {factor!r}"
