"""What the classes of many repositories have in common: each is let go as it is, and refuted with one mistake in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nightly import more_by_night, one_in
from torch import Tensor, nn
from torch.nn import functional as F

from properties.catalogue import PROPERTIES, select
from properties.engine.frameworks import framework
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search

TWIN = PROPERTIES["module_is_as_near_to_its_twin_as_rounding_explains"]


class NormedQueries(nn.Module):
    """RMS norms of queries and keys, of PyTorch's default epsilon, which is that of the type."""

    own = 0.0

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.heads, self.norm = n_heads, nn.RMSNorm(dim // n_heads)
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.wqkv(x).chunk(3, -1))
        q, k = F.rms_norm(q, q.shape[-1:]), self.norm(k) * (1 + self.own * (x.element_size() == 4))
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OffInFloat32(NormedQueries):
    own = 1e-4


class ReducedChannels(nn.Module):
    """An eighth of the channels, as in SAGAN: nothing is left of four."""

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(in_dim, out, 1) for out in (in_dim // 8, in_dim // 8, in_dim))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).flatten(2) for layer in (self.query, self.key, self.value))
        weights = (q.mT @ k).softmax(-1)
        return (v @ weights.mT).view_as(x) + x


class FirstHeadAlone(nn.Module):
    """Right for four heads: what a squeeze makes of one head raises, which is no matter of the width."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.heads, self.wqkv = n_heads, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2).squeeze(1) for part in self.wqkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).view_as(x)


class Lengths(nn.Module):
    """A number of keys for every sequence, hidden by a number that half types do not have."""

    more = 0

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Tensor:
        scores = torch.bmm(queries, keys.mT) * max(queries.shape[-1], 1) ** -0.5
        if valid_lens is not None:
            shown = torch.arange(scores.shape[-1])[None, None, :] < valid_lens[:, None, None] + self.more
            scores = scores.masked_fill(~shown, -1e6)
        return torch.bmm(scores.softmax(-1), values)


class OneMore(Lengths):
    more = 1


class KeptWithin(nn.Module):
    """Angles from outside, and keys and values of earlier calls within, as in Meta's Llama: a start says how many of these there are."""

    turns_queries = True

    def __init__(self, dim: int, n_heads: int, max_seq_len: int) -> None:
        super().__init__()
        self.heads = n_heads
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.kept = torch.zeros(2, 32, max_seq_len, n_heads, dim // n_heads)

    def forward(self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None = None) -> Tensor:
        (rows, length, _), end = x.shape, start_pos + x.shape[1]
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.wqkv(x).chunk(3, -1))
        q, k = turned(q, freqs_cis) if self.turns_queries else q, turned(k, freqs_cis)
        self.kept = self.kept.to(q)
        self.kept[:, :rows, start_pos:end] = torch.stack((k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, *self.kept[:, :rows, :end]))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if mask is None else scores + mask
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, -1))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * angles.view(1, x.shape[1], 1, -1)
    return torch.view_as_real(pairs).flatten(3).type_as(x)


class OnlyKeysTurn(KeptWithin):
    turns_queries = False


class PaddingHidesRows(nn.Module):
    """Padding hides rows, too, by the lowest number of the type: such a row sees all keys alike, whatever is rounded."""

    also = 0.0

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.heads, self.wqkv = n_heads, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.wqkv(x).chunk(3, -1))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            seen = mask[:, None, :, None] & mask[:, None, None, :]
            scores = scores.masked_fill(~seen, -torch.finfo(scores.dtype).max)
        weights = scores.softmax(-1)
        weights = weights if mask is None else weights + self.also * ~mask[:, None, None, :]
        return (weights @ v).transpose(1, 2).flatten(2)


class PaddingLeaks(PaddingHidesRows):
    also = 1e-3


def refuted(thing: Any, cases: int = 12) -> set[str]:
    target = make_target("mine", thing)
    target = target.kind.handshake(target, "cpu")
    return {finding.prop.name for finding in verify_target(target, select(), Plan(examples=cases, shrink=False, strict=False)).findings}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # as PyTorch says of gradients of complex angles in float16
@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", one_in(2, [NormedQueries, ReducedChannels, Lengths, KeptWithin, PaddingHidesRows]))
def test_right_ones_are_let_go(thing: Any) -> None:
    assert not refuted(thing, cases=more_by_night(5, 12))


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("thing", one_in(2, [FirstHeadAlone, OneMore, OnlyKeysTurn, PaddingLeaks]))
def test_wrong_ones_are_not(thing: Any) -> None:
    assert refuted(thing)


@pytest.mark.nightly
def test_an_epsilon_of_the_type_is_that_of_the_type_that_is_followed() -> None:
    """The bound is none the wider for it."""
    right, wrong = (search(make_target("mine", thing), TWIN, Plan(examples=60, shrink=False)) for thing in (NormedQueries, OffInFloat32))
    assert right.status == "passed" and 0 < right.notes.used < 1 and wrong.status == "refuted"


def test_a_type_in_which_lengths_raise_is_told() -> None:
    target = make_target("mine", Lengths())
    assert target.dtypes == ("float64", "float32", "bfloat16") and "with lengths it raised" in target.untried["float16"]


class ZerosOfFloat32(nn.Module):
    """As in T5: beside a memory there is no bias, which is an array of zeros, and of float32."""

    def __init__(self, d_model: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.heads, (self.q, self.k, self.v, self.o) = num_heads, (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        y = x if memory is None else memory
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q(x), self.k(y), self.v(y)))
        bias = 0 if memory is None else torch.zeros(x.shape[1], y.shape[1])
        weights = (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.nightly
def test_a_type_in_which_a_memory_raises_is_told_and_not_tried() -> None:
    target = make_target("mine", ZerosOfFloat32)
    assert target.dtypes == ("float64", "float32") and "expected scalar type Float" in target.untried["float16"]
    assert not refuted(ZerosOfFloat32, cases=5)


def test_no_place_is_moved_to_another_one() -> None:
    """Whole numbers are added, subtracted, multiplied and divided without a rounding: moved by one, place 2 was place 1 (SAM's biases of places)."""
    modules = framework("torch").modules
    assert modules is not None
    places = torch.arange(9) * 1.0
    exact = (lambda x: x - 2, lambda x: 3 * x, lambda x: 127 + x, lambda x: x / 1)
    rounded = (lambda x: x - 0.3, lambda x: 3.7 * x, lambda x: x + 2**25, lambda x: x / 7)
    with modules.perturbed(1, {"float32": 2.0**-24}, True, ""):
        moved = [f(places) for f in (*exact, *rounded)]
    assert [torch.equal(x, f(places)) for x, f in zip(moved, (*exact, *rounded), strict=True)] == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    ("mode", "shape", "size"),
    [
        ("linear", (1, 8, 15), (7,)),
        ("linear", (1, 8, 512), (300,)),
        ("bilinear", (1, 8, 7, 7), (13, 13)),
        ("bicubic", (1, 8, 14, 14), (9, 20)),
    ],
)
def test_places_between_numbers_are_rounded_too(mode: str, shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    """As of relative positions that are resized: float32 is off by more than a rounding of the result, and by as much as is allowed for it."""

    def resized(x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, size=size, mode=mode)

    modules = framework("torch").modules
    assert modules is not None
    really, moved = 0.0, 0.0
    for seed in range(40):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        exact = resized(x.double())
        really = max(really, float((resized(x).double() - exact).abs().max()))
        with modules.perturbed(seed, {"float64": 2.0**-24}, True, ""):
            moved = max(moved, float((resized(x.double()) - exact).abs().max()))
    assert 3 * 2.0**-24 < really < 1.5 * moved < 8 * really
